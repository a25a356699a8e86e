"""The changes between two runs, and which of them are regressions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fattn_probe.compare.judge.support import LOST
from fattn_probe.launch.record import LaunchRecord
from fattn_probe.regress.records import Cell, Result
from fattn_probe.regress.steps import Level, last_step


class Kind(StrEnum):
    """A kind of change."""

    NEW_FAILURE = "new failure"
    FIXED = "fixed"
    SUPPORT_LOST = "support lost"
    SUPPORT_GAINED = "support gained"
    KERNEL = "another kernel"
    LAUNCH = "another launch"
    BITS = "bits changed"
    SLOWER = "slower"
    FASTER = "faster"
    LOST = "lost"
    NOT_RUN = "not run"
    REMOVED = "removed"
    NEW = "new case"


ALARMS = frozenset({Kind.NEW_FAILURE, Kind.SUPPORT_LOST, Kind.SLOWER})
"""The changes that are regressions (exit 6)."""
UNJUDGED = frozenset({Kind.LOST, Kind.NOT_RUN})


@dataclass(frozen=True)
class Change:
    """A change of one case; `words` describe it before and after."""

    case: str
    kind: Kind
    words: str

    @property
    def alarm(self) -> bool:
        """Whether the change is a regression."""
        return self.kind in ALARMS


def changes(before: Mapping[str, Result], after: Mapping[str, Result], *, complete: bool = False) -> tuple[Change, ...]:
    """The changes from a baseline to a later run, case by case in the order of the later run.

    A failing new case is a regression. A case of the baseline without a result is always reported: as removed from the
    suite if the later run is `complete`, which means that all of its cases have results.
    """
    found = [change for name, result in after.items() for change in _of_case(before.get(name), result)]
    kind = Kind.REMOVED if complete else Kind.NOT_RUN
    gone = [Change(name, kind, f"was {result.status}") for name, result in before.items() if name not in after]
    return (*found, *gone)


def _of_case(before: Result | None, after: Result) -> Iterator[Change]:
    if before is None:
        kind = Kind.NEW_FAILURE if after.status == "fail" else Kind.NEW
        yield Change(after.name, kind, after.explained or after.status)
        return
    if before.digest != after.digest:
        yield Change(after.name, Kind.NEW, "the case itself was changed: another op, or other inputs")
        if after.status != "fail":
            return
    status = _status_change(before, after)
    if status is not None:
        yield status
    if before.output and after.output:  # a run that ended early did not launch all its kernels
        yield from _launch_changes(before, after)
        if status is None and before.output != after.output:
            yield Change(
                after.name, Kind.BITS, f"the same verdict ({after.status}) with other bits{_model_bits(before, after)}"
            )


def _status_change(before: Result, after: Result) -> Change | None:
    if after.status == "lost":
        return Change(after.name, Kind.LOST, after.failure or after.reason)
    if before.status in (after.status, "lost"):
        known = before.status != "lost" or after.status != "fail"
        return None if known else Change(after.name, Kind.NEW_FAILURE, after.explained)
    refused = after.reason.startswith(LOST) and before.status == "pass"
    kinds = {
        "fail": Kind.SUPPORT_LOST if refused else Kind.NEW_FAILURE,
        "unsupported": Kind.SUPPORT_LOST if before.status == "pass" else Kind.FIXED,
        "pass": Kind.SUPPORT_GAINED if before.status == "unsupported" else Kind.FIXED,
    }
    return Change(after.name, kinds[after.status], f"was {before.status}: {after.explained or after.status}")


def _model_bits(before: Result, after: Result) -> str:
    """The shares of elements equal to the rounding model, before and after, if known and changed."""
    was, now = (result.metrics.get("equal_bits") for result in (before, after))
    if was is None or now is None or was == now:
        return ""
    return f"; {100 * now:.4g} % of the elements equal the rounding model in every bit, before {100 * was:.4g} %"


def _launch_changes(before: Result, after: Result) -> Iterator[Change]:
    if before.launches == after.launches:  # true of most results, and saves parsing
        return
    a, b = before.kernels, after.kernels
    if a == b:
        return
    if [record.spelling for record in a] != [record.spelling for record in b]:
        yield Change(after.name, Kind.KERNEL, f"{_kernels(a)} became {_kernels(b)}")
        return
    other = [(was, now) for was, now in zip(a, b, strict=True) if was != now]
    was, now = (
        "; ".join(f"{record.kernel}: {record.geometry}" for record in records) for records in zip(*other, strict=True)
    )
    yield Change(after.name, Kind.LAUNCH, f"{was} became {now}")


def _kernels(records: Sequence[LaunchRecord]) -> str:
    return ", ".join(record.spelling for record in records) or "no kernel"


def time_changes(cells: Sequence[Cell], after: Mapping[str, Result]) -> Iterator[Change]:
    """Changes between the last two levels of each case's times; a level spans several runs.

    `cells` are those of a line's runs, oldest first, including the last. Times of different ops are not compared.
    """
    times: dict[tuple[str, str], list[float]] = {}
    for cell in cells:
        if cell.time is not None:
            times.setdefault((cell.name, cell.digest), []).append(cell.time)
    for name, result in after.items():
        if result.seconds and (step := last_step(times.get((name, result.digest), ()))):
            yield time_change(name, *step)


def time_change(case: str, before: Level, after: Level) -> Change:
    """The change from one level of a case's times to the next, in words."""
    kind = Kind.SLOWER if after.value > before.value else Kind.FASTER
    return Change(
        case,
        kind,
        f"{before.value * 1e6:.1f} us became {after.value * 1e6:.1f} us, since {after.stop - after.start} runs",
    )
