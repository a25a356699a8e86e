"""`inspect --program test-backend-ops`: a case of upstream's own list under the debugger."""

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Target
from fattn_probe.daily.inspect.inspector import Inspection, Inspector
from fattn_probe.daily.ops.parse import ask_options, plan_ops
from fattn_probe.daily.ops.rounds import Timeouts, run_ops_on
from fattn_probe.llama.build import TEST_BACKEND_OPS

LISTING = Timeouts(600.0, 1800.0)  # a debug build on a busy machine is silent for a minute


def inspect_upstream(inspector: Inspector, only: str, target: Target) -> Inspection:
    """Inspect the first case that `only` selects and the device supports.

    `only` is a case as upstream prints it, `FLASH_ATTN_EXT(hsk=64,...)`, or a regular expression over its parameters.
    """
    session = inspector.session
    listed = run_ops_on(session, target, "support", only=only, timeouts=LISTING, on_result=lambda result, total: None)
    supported = [result.case for result in listed.results if result.status == "ok"]
    if not supported:
        none = f"--filter {only!r}: {target} supports none of the {len(listed.results)} cases it selects"
        raise listed.problem() or InputError(none)
    program = session.build_for(target, TEST_BACKEND_OPS).test_backend_ops
    options = ask_options(program, session.env(target, TEST_BACKEND_OPS))
    words = plan_ops(options, "test", target.backend, supported[0])
    return inspector.inspect_upstream(supported[0], words, target)
