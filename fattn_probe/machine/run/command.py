"""`fattn-probe run` and `fattn-probe plan`: run cases on targets, and print tables and JSON."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.errors import ComparisonError, InputError, LostError
from fattn_probe.base.files import make_folder, scratch
from fattn_probe.base.tables import Table
from fattn_probe.cases.device import Target, units_of
from fattn_probe.cases.device.origin import legend
from fattn_probe.cases.scenario import Case
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.machine.run.capture import Capture, inputs_of, make_dry_file, write_capture
from fattn_probe.machine.run.frames import brief_frames, describe_finding
from fattn_probe.machine.run.outcome import Failed, Finding, Lost, Missing, Ran, RunOutcome, Unsupported
from fattn_probe.machine.run.session import Session


@dataclass(frozen=True)
class Done:
    """The result of one case on one target: its capture, or the outcome if there is no capture."""

    case: Case
    target: Target
    result: Capture | RunOutcome
    file: Path | None = None

    @property
    def on(self) -> str:
        """The target's name, as on a command line."""
        return str(self.target)

    @property
    def launches(self) -> tuple[LaunchRecord, ...]:
        """The launches, empty if they are unknown."""
        return self.result.launches if isinstance(self.result, Capture | Ran) else ()

    @property
    def status(self) -> str:
        """The status: `ran`, or the kind of outcome if there is no output."""
        if isinstance(self.result, Finding):
            return "lost" if self.result.is_lost else "fault"
        return "ran" if isinstance(self.result, Capture | Ran) else type(self.result).__name__.lower()

    @property
    def problem(self) -> str:
        """The reason why there is no output; empty if there is an output."""
        return "" if isinstance(self.result, Capture | Ran) else describe(self.result)


def describe(outcome: RunOutcome) -> str:
    """A description of how a run ended, with the stack if it is known."""
    match outcome:
        case Ran():
            return "ran"
        case Unsupported(reason):
            return f"unsupported: {reason}"
        case Missing(symbol):
            return f"lost: the build lacks {symbol}"
        case Lost(message, frames):
            return "\n".join([f"lost: {message}", *stack(frames).splitlines()])
        case Finding():
            return f"{'lost' if outcome.is_lost else 'fault'}: {describe_finding(outcome)}"
        case Failed(message, frames):
            return f"failed: {message}\n{stack(frames)}"


def stack(frames: Sequence[str]) -> str:
    """The innermost frames, one per line."""
    return "".join(f"    {frame}\n" for frame in brief_frames(frames))


Work = Sequence[tuple[Case, Sequence[Target]]]  # each case with its targets


def run_cases(session: Session, work: Work, folder: Path | None = None) -> Iterator[Done]:
    """Run each case on its targets; captures are written to `folder` as CASE@TARGET.gguf."""
    with session.persistent_runner():
        for case, targets in work:
            with inputs_of(case) as inputs:
                for target in targets:
                    result, path = session.capture(case, inputs, target), None
                    if folder is not None and isinstance(result, Capture):
                        make_folder(folder, "--captures")
                        path = folder / f"{case.name}@{str(target).replace(':', '-')}.gguf"
                        write_capture(result, path)
                    yield Done(case, target, result, path)


def plan_cases(session: Session, work: Work) -> Iterator[Done]:
    """The launches of each case on its targets, without running a kernel; needs a dry session."""
    with scratch() as folder, session.persistent_runner():
        for case, targets in work:
            inputs = make_dry_file(case, folder / "case.gguf")
            for target in targets:
                yield Done(case, target, session.run(case, inputs, target))


def check_simulated(work: Work) -> None:
    """Raise InputError if a target is not a simulated GPU."""
    for target in (target for _, targets in work for target in targets):
        if target.engine != "sim":
            raise InputError(f"plan --on {target}: plan works only for simulated GPUs (sim:ID)")


def raise_if_failed(done: Sequence[Done]) -> None:
    """Raise the error for the worst case, if any."""
    if any(isinstance(item.result, Failed) or item.status == "fault" for item in done):
        raise ComparisonError("a kernel failed")
    if any(item.status in ("lost", "missing") for item in done):
        raise LostError("a run was lost")


def render_run(done: Sequence[Done]) -> RenderableType:
    """A table of the kernels that ran, and of the cases that did not run."""
    times = {
        id(item): f"{item.result.median_seconds * 1e3:.3g} ms" for item in done if isinstance(item.result, Capture)
    }
    table = launch_table(done, ("time",), lambda item, place: ("" if place else times.get(id(item), ""),))
    return Group(table, *remarks(done))


def render_plan(done: Sequence[Done]) -> RenderableType:
    """A table of the launches on each device, with registers and blocks per SM or CU; uncertain figures are marked.

    An AMD GPU's registers per thread are VGPRs; on CDNA these include the AGPRs.
    """

    def occupied(item: Done, place: int) -> tuple[str, ...]:
        taken = [(one.origin.marked(one.regs), one.origin.marked(one.max_blocks_per_sm)) for one in item.launches]
        return taken[place] if taken else ("", "")

    origins = legend(launch.origin for item in done for launch in item.launches)
    unit = units_of(item.target.device for item in done)
    registers = "regs" if "SM" in unit else "VGPRs"
    table = launch_table(done, (registers, f"blocks\nper {unit}"), occupied)
    return Group(table, *(Text(line, "dim") for line in origins), *remarks(done))


def launch_table(
    done: Sequence[Done], columns: tuple[str, ...], cells: Callable[[Done, int], tuple[str, ...]]
) -> Table:
    """A table with a row per launch, at least one per case: kernel, grid, block, dynamic shared memory, extra cells."""
    rows = []
    for item in done:
        launches = [
            (one.spelling, *("x".join(map(str, dim)) for dim in (one.grid, one.block)), f"{one.shared} B")
            for one in item.launches
        ] or [(item.problem.partition("\n")[0] or "no kernel", "", "", "")]
        names = (item.case.name, item.on)
        for place, launch in enumerate(launches):
            rows.append((*(("", "") if place else names), *launch, *cells(item, place)))
    numbers = frozenset({"shared", *columns})
    columns = ("case", "on", "kernels", "grid", "block", "shared", *columns)
    return Table(columns, tuple(rows), numbers, heading=("case", "on"))


def remarks(done: Sequence[Done]) -> list[Text]:
    """Messages too long for a table cell, and the paths of captures."""
    said = [Text(f"{item.case.name} on {item.on}: {item.problem}", "red") for item in done if "\n" in item.problem]
    said += [Text(f"capture: {item.file}", "dim") for item in done if item.file]
    return [Text(), *said] if said else []


def run_json(done: Sequence[Done]) -> dict[str, Any]:
    """The document for JSON: `runs`, each with case, digest, on, status, problem, seconds, clock, device, file, ..."""
    runs = []
    for item in done:
        result = item.result
        value: dict[str, Any] = {"case": item.case.name, "digest": item.case.digest, "on": item.on}
        value |= {"status": item.status, "problem": item.problem or None, "file": str(item.file) if item.file else None}
        if isinstance(result, Capture):
            value |= {"seconds": list(result.seconds), "clock": result.clock, "device": result.device}
        if isinstance(result, Finding):
            finding = {name: value for name, value in asdict(result).items() if name != "frames"}
            value |= {"finding": finding, "frames": list(result.frames)}
        runs.append(value | {"launches": [launch.document() for launch in item.launches]})
    return {"runs": runs}
