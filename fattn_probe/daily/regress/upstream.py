"""Upstream's own FLASH_ATTN_EXT cases, as its test-backend-ops lists them for a source and a device."""

from collections import Counter
from collections.abc import Iterable

from fattn_probe.base.digest import short
from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.cases import resolve
from fattn_probe.cases.scenario.from_ops import from_ops
from fattn_probe.daily.ops.drive import Timeouts
from fattn_probe.daily.ops.parse import OpResult
from fattn_probe.daily.ops.rounds import run_ops
from fattn_probe.daily.regress.records import Result
from fattn_probe.llama.build import TEST_BACKEND_OPS
from fattn_probe.machine.run.session import Session

LIST_SECONDS = 300.0
UNSUPPORTED = "this source's test-backend-ops reports that the backend does not support the op"


def upstream_list(session: Session, target: Target) -> tuple[OpResult, ...]:
    """Every case of the source's test-backend-ops: `ok` if the device supports it, else `not-supported`."""
    report = run_ops(
        session.build_for(target, TEST_BACKEND_OPS).test_backend_ops,
        "support",
        target.backend,
        env=session.env(target, TEST_BACKEND_OPS),
        timeouts=Timeouts(LIST_SECONDS, LIST_SECONDS),
        on_result=lambda result, total: None,
    )
    if problem := report.problem():
        raise problem
    return report.results


def upstream_cases(listed: Iterable[OpResult], *, separate_V: bool) -> tuple[list[Case], list[Result]]:
    """The cases to run, with our inputs, and the results of those that need no run.

    A case's name is upstream's own text, with a number appended if the list has it twice. A case that the device does
    not support needs no run. A supported case that no scenario can express is lost, with the reason.
    """
    cases: list[Case] = []
    settled: list[Result] = []
    for name, item in _named(listed):
        try:
            case = resolve(from_ops(item.case, separate_V=separate_V), name, "upstream")
        except InputError as error:
            digest = short(item.case)
            settled.append(_settled(name, digest, item, f"cannot be replayed: {error}"))
            continue
        if item.status == "ok":
            cases.append(case)
        else:
            settled.append(_settled(name, case.digest, item, ""))
    return cases, settled


def _named(listed: Iterable[OpResult]) -> Iterable[tuple[str, OpResult]]:
    seen: Counter[str] = Counter()
    for item in listed:
        seen[item.case] += 1
        yield item.case if seen[item.case] == 1 else f"{item.case} #{seen[item.case]}", item


def _settled(name: str, digest: str, item: OpResult, problem: str) -> Result:
    if item.status != "ok":
        reason = f"{UNSUPPORTED}: {item.message}" if item.message else UNSUPPORTED
        return Result(name, digest, "unsupported", reason, failure=reason)
    return Result(name, digest, "lost", problem.splitlines()[0], failure=problem)
