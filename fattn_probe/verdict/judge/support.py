"""The verdict on a run without an output, and the ops that releases support.

Two tables have op and GPU as keys: the releases that support the op, and the kernels that the default release launches.

A case fails if the source no longer accepts its op or, with the check `kernels`, if it launches different kernels.
`support.csv` and `kernels.csv` have a row for each op of the shipped scenarios and suites, from `scripts/support`.
Other ops and, for kernels, other releases are not judged.
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files

from fattn_probe.cases.device import Target, load_devices
from fattn_probe.cases.op import Op
from fattn_probe.cases.scenario import Case
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.machine.run.frames import brief_frames, describe_finding, headline, short_frames, short_path, shortened
from fattn_probe.machine.run.outcome import DEVICE_ERROR, Failed, Finding, Lost, Missing, Unsupported
from fattn_probe.machine.run.prepare import dry_runs, kernel_key
from fattn_probe.machine.run.session import Session
from fattn_probe.verdict.judge.bitwise import Check, not_made
from fattn_probe.verdict.measure.verdict import Status, Verdict

TABLE, KERNELS = "support.csv", "kernels.csv"
LOST = "support lost"
"""The beginning of the reason for an op that is no longer supported."""
NVIDIA, AMD, NONE = "yes", "amd", "no"
"""The words in a cell for all compute capabilities of NVIDIA, all architectures of AMD, and none."""
BETWEEN = "; "  # separates the kernels of an op


@dataclass
class Supported:
    """The support for the op of `case`: for each build number, the capabilities (`Device.cc`) of supporting GPUs."""

    case: str
    on: dict[int, frozenset[str]] = field(default_factory=dict)


Support = dict[str, Supported]
"""The support for each `Op.digest`."""
Choices = dict[str, dict[str, str]]
"""For each `Op.digest` and capability, the names of the kernel cases; and the columns `case` and `build`."""


def support_of(text: str, groups: Mapping[str, frozenset[str]]) -> Support:
    """Read a table; `groups` gives the meaning of words in a cell."""
    words = {**groups, NONE: frozenset[str]()}
    found: Support = {}
    for row in csv.DictReader(io.StringIO(text)):
        builds = {int(name): cell for name, cell in row.items() if name.isdecimal() and cell}
        on = {
            number: frozenset[str]().union(*(words.get(word, {word}) for word in cell.split()))
            for number, cell in builds.items()
        }
        found[row["op"]] = Supported(row["case"], on)
    return found


def supporting(op: Op, cc: str, build_number: str) -> int | None:
    """The last release up to `build_number` in the table's row for this op, if it supports the op on this GPU.

    None if that release refuses the op, or the table has no such row. A source without a number (`?`), such as a
    checkout without history, counts as newer than all releases.
    """
    last = last_known(op, cc, build_number)
    return last if last is not None and cc in shipped()[op.digest].on[last] else None


def last_known(op: Op, cc: str, build_number: str) -> int | None:
    """The last release up to `build_number` that was tried with this op on this GPU; None if none was."""
    known = shipped().get(op.digest)
    if known is None:
        return None
    limit = int(build_number) if build_number.isdecimal() else max(known.on, default=0)
    return max((number for number in known.on if number <= limit and number in asked(cc)), default=None)


@cache
def asked(cc: str) -> frozenset[int]:
    """The releases that were tried on this GPU: those that support any op in the table on it."""
    return frozenset(number for known in shipped().values() for number, on in known.on.items() if cc in on)


def taken_without_patches(session: Session, case: Case, target: Target) -> bool:
    """Whether a session's source accepts an op without its patches, from a dry run on a simulated GPU."""
    options = session.options
    if not options.patches or options.build is not None or target.engine != "sim":
        return False
    unpatched = Session(replace(options, patches=()), session.progress)
    return any(dry_runs(unpatched, {case.name: case}, target).values())


@cache
def shipped() -> Support:
    """The package's table of support."""
    return support_of((files(__package__) / TABLE).read_text(encoding="utf-8"), capabilities())


def capabilities() -> dict[str, frozenset[str]]:
    """The capabilities in the device catalogue that each word in a cell stands for."""
    found = {device.cc: AMD if device.gfx else NVIDIA for device in load_devices().values()}
    return {word: frozenset(cc for cc, whose in found.items() if whose == word) for word in (NVIDIA, AMD)}


def choices_of(text: str) -> Choices:
    """Read a table."""
    return {row.pop("op"): row for row in csv.DictReader(io.StringIO(text))}


@cache
def shipped_choices() -> Choices:
    """The package's table of kernels."""
    return choices_of((files(__package__) / KERNELS).read_text(encoding="utf-8"))


def kernels(op: Op, cc: str, build_number: str, launches: Sequence[LaunchRecord]) -> Check:
    """Check that a run launches the same kernels for an op on a GPU as its release does."""
    name, row = "kernels", shipped_choices().get(op.digest, {})
    expected = row.get(cc, "")
    if not expected or row["build"] != build_number:
        return not_made(name, "the kernels of this release for this op on this GPU are not known")
    found = [f"{family} {','.join(values)}" for family, values in map(kernel_key, launches) if family]
    said = BETWEEN.join(dict.fromkeys(found))
    if said == expected:
        return Check(name, True, False, f"{said}, as recorded")
    reason = f"another kernel: {said or 'no attention kernel'}, but b{build_number} launches {expected}"
    return Check(name, False, True, reason)


PLACE = re.compile(r"(?:^| at )(?P<file>[^\s:]+):(?P<line>\d+)(?=:|$)", re.MULTILINE)
CUDA_ERROR = "CUDA error"
"""The kind of ggml's CUDA errors, and of its ROCm errors on AMD GPUs."""


def verdict_without_output(outcome: Unsupported | Missing | Finding | Failed | Lost) -> Verdict:
    """The verdict on a run without an output.

    It is `lost` for an unexplained crash, a missing function, and an instruction that the simulator does not know.

    The reason is the message of the checker, sanitizer or ggml; a stack follows on further lines, innermost first.
    """
    match outcome:
        case Unsupported(reason):
            return Verdict(Status.UNSUPPORTED, reason)
        case Missing(symbol):
            return Verdict(Status.LOST, f"the build lacks a function that was called: {symbol}")
        case Finding():
            return Verdict(Status.LOST if outcome.is_lost else Status.FAIL, describe_finding(outcome))
        case Failed(message, stack) | Lost(message, stack):
            status = Status.FAIL if isinstance(outcome, Failed) else Status.LOST
            return Verdict(status, "\n".join([message, *(f"  {frame}" for frame in brief_frames(stack))]))


def finding_of(outcome: object) -> Finding | None:
    """The finding that stopped a run, with shortened names, or one made from ggml's abort; None for other outcomes."""
    match outcome:
        case Finding():
            return replace(shortened(outcome), message=headline(outcome))
        case Failed(message=message, stack=stack):
            found = PLACE.search(message)
            file, line = (short_path(found["file"]), int(found["line"])) if found else ("", 0)
            kind = CUDA_ERROR if DEVICE_ERROR.search(message) else "abort"
            return Finding(kind, message.partition("\n")[0], file=file, line=line, frames=short_frames(stack))
    return None
