"""`inspect --program test-backend-ops`: run a case of upstream's own list under the debugger."""

from collections.abc import Iterator, Sequence

from fattn_probe.base.activity import Step, quiet
from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Target
from fattn_probe.daily.inspect.examine import Examined
from fattn_probe.daily.inspect.inspector import Inspector
from fattn_probe.daily.ops.parse import ask_options, plan_ops
from fattn_probe.daily.ops.rounds import Timeouts, run_ops_on
from fattn_probe.llama.build import RUNNER, TEST_BACKEND_OPS

LISTING = Timeouts(600.0, 1800.0)  # a debug build on a busy machine is silent for a minute


def inspect_upstream(
    inspector: Inspector, program: str, only: str, targets: Sequence[Target], step: Step = quiet
) -> Iterator[Examined]:
    """Inspect, on each target, the first case that `only` selects and the target supports.

    `only` is a case as upstream prints it, `FLASH_ATTN_EXT(hsk=64,...)`, or a regular expression over its parameters.
    """
    if program != TEST_BACKEND_OPS:
        raise InputError(f"--program {program!r}: allowed: {RUNNER}, {TEST_BACKEND_OPS}")
    session = inspector.session
    for target in targets:
        step(f"{program} on {target}, under the debugger")
        listed = run_ops_on(session, target, "support", only=only, timeouts=LISTING, on_result=lambda *_: None)
        supported = [result.case for result in listed.results if result.status == "ok"]
        if not supported:
            none = f"--filter {only!r}: {target} supports none of the {len(listed.results)} cases it selects"
            raise listed.problem() or InputError(none)
        options = ask_options(session.build_for(target, program).test_backend_ops, session.env(target, program))
        words = plan_ops(options, "test", target.backend, supported[0])
        yield Examined(inspector.inspect_upstream(supported[0], words, target))
