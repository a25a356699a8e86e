"""Run a compiled program, and report its launches, the checker's finding and the exit code."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.errors import TimedOutError
from fattn_probe.base.figures import number_of
from fattn_probe.base.files import scratch
from fattn_probe.base.process import TAIL_LINES, Completed, describe_code, run, run_attached
from fattn_probe.base.tables import Table
from fattn_probe.cases.device import Device, Target, units_of
from fattn_probe.lab.program.build import Executable
from fattn_probe.llama.launch.record import LaunchRecord, parse_launches
from fattn_probe.machine.run.frames import describe_finding, short_function, short_kernel, symbolised
from fattn_probe.machine.run.outcome import FAULT_CODE, Finding, checker_finding, parse_finding
from fattn_probe.machine.run.runner import LAUNCHES_ENV
from fattn_probe.machine.run.simulator import Simulation

REFUSED = '{"refused":'


@dataclass(frozen=True)
class ProgramSettings:
    """The settings of a run: arguments, time limit in seconds, and whether to keep the output."""

    arguments: tuple[str, ...] = ()
    timeout: float | None = None
    keeps_output: bool = False


@dataclass(frozen=True)
class ProgramRun:
    """How a program ended: `code` as in `subprocess`, `seconds` on this machine's clock.

    `host_time`: the program asked CUDA for an elapsed time, and received the host's time. `stdout` and `stderr` are
    empty unless they were kept. `refused` are the launches that the simulator refused, as findings, one per call site.
    """

    on: str
    code: int
    seconds: float
    launches: tuple[LaunchRecord, ...]
    finding: Finding | None = None
    host_time: bool = False
    stdout: str = ""
    stderr: str = ""
    refused: tuple[Finding, ...] = ()


def execute(executable: Executable, target: Target, settings: ProgramSettings, simulation: Simulation) -> ProgramRun:
    """Run a program to completion; TimedOutError with its last launch if it takes too long."""
    with scratch() as folder:
        launches, findings = folder / "launches", folder / "findings"
        env = environment(executable, target, simulation)
        env |= {LAUNCHES_ENV: str(launches), "FATTN_PROBE_FINDINGS": str(findings)}
        argv: list[str | Path] = [executable.path, *settings.arguments]
        try:
            if settings.keeps_output:
                done = run(argv, env=env, timeout=settings.timeout, failure=None)
            else:  # the program writes to this terminal
                code, seconds = run_attached(argv, env=env, timeout=settings.timeout)
                done = Completed(tuple(map(str, argv)), code, "", "", seconds)
        except TimedOutError as error:
            raise timed_out(executable, settings, text_of(launches), error.said) from error
        text = text_of(launches)
        return ProgramRun(
            str(target),
            done.code,
            done.seconds,
            launches_of(text),
            finding_of(done, findings),
            '"note"' in text,
            done.stdout,
            done.stderr,
            refusals_of(text),
        )


def text_of(records: Path) -> str:
    """The launch records; empty if there are none."""
    return records.read_text() if records.is_file() else ""


def timed_out(executable: Executable, settings: ProgramSettings, records: str, said: str) -> TimedOutError:
    """The error for a program that took too long: its file, its last launch, and its output if that was kept."""
    launches = launches_of(records)
    place = "before its first launch"
    if launches:
        last = launches[-1]
        place = f"its last launch was number {len(launches)}, {last.spelling}, {last.geometry}"
    parts = [f"{executable.source} timed out after {settings.timeout:g} s; {place}"]
    return TimedOutError("\n".join([*parts, *said.strip().splitlines()[-TAIL_LINES:]]), said)


def refusals_of(records: str) -> tuple[Finding, ...]:
    """The refused launches, one per call site, with the frames out to main()."""
    lines = dict.fromkeys(line for line in records.splitlines() if line.startswith(REFUSED))
    return tuple(within_kernel(symbolised(parse_finding(json.loads(line)["refused"]))) for line in lines)


def environment(executable: Executable, target: Target, simulation: Simulation) -> dict[str, str]:
    """The environment of a program on a target."""
    env = {"DEBUGINFOD_URLS": "", **target.env}
    if target.device is None:
        return env
    env |= simulation.env(target.device, "") | {"FATTN_PROBE_PROGRAM": "1"}
    return env | ({} if executable.fast_math else {"FATTN_PROBE_SIM_DENORMALS": "1"})


def launches_of(text: str) -> tuple[LaunchRecord, ...]:
    """The launches in a program's records; if a launch has two records, the later one is more complete."""
    return tuple({launch.order: launch for launch in parse_launches(text)}.values())


def finding_of(done: Completed, findings: Path) -> Finding | None:
    """The simulator's finding, with its frames symbolised."""
    if done.code != FAULT_CODE or not findings.is_file():
        return None
    found = checker_finding(Completed(done.argv, done.code, "", findings.read_text(), done.seconds))
    return within_kernel(symbolised(found)) if found else None


def within_kernel(found: Finding) -> Finding:
    """The finding with only the frames from its location out to the kernel, or to main()."""
    kernel = short_kernel(found.kernel).partition("<")[0] if found.kernel else "main"
    functions = [short_function(frame.partition(" at ")[0]).partition("<")[0] for frame in found.frames]
    named = [place for place, function in enumerate(functions) if function in (kernel, "main")]
    return replace(found, frames=found.frames[: named[0] + 1]) if named else found


def document(run: ProgramRun) -> dict[str, Any]:
    """A run for JSON."""
    return {
        "on": run.on,
        "exit_code": run.code,
        "seconds": run.seconds,
        "host_time": run.host_time,
        "launches": [{**launch.document(), "static_shared": launch.static_shared} for launch in run.launches],
        "refused": [asdict(found) for found in run.refused],
        "finding": asdict(run.finding) if run.finding else None,
        "stdout": run.stdout,
        "stderr": run.stderr,
    }


COLUMNS = ("kernel", "launches", "grid", "block", "shared memory", "regs", "blocks\nper {unit}")
HOST_TIME = (
    "The times that this program measured with events are times on this computer: the simulator has no notion of time."
)
NO_REGISTERS = "Blocks per {unit} are upper limits: the registers of these kernels are not known."


def render(run: ProgramRun, target: Target, *, checked: bool) -> RenderableType:
    """The launches, the finding, and how the program ended."""
    device = target.device
    count = len(run.launches)
    launches = f"{count} launch{'es' * (count != 1)}"
    refused = f", launches refused at {number_of(len(run.refused), 'place')}" if run.refused else ""
    shown: list[RenderableType] = [Text(f"── {run.on}: {launches}{refused}", "dim")]
    if run.launches:
        shown.append(launch_table(run.launches, device))
    shown += [Text(describe_finding(refusal), "yellow") for refusal in run.refused]
    if run.finding is not None:
        shown.append(Text(describe_finding(run.finding), "red"))
    elif checked and (run.launches or not run.refused):
        shown.append(Text("the checker found nothing" + (" in the launches that ran" if run.refused else ""), "green"))
    if device is not None and run.launches:
        shown.append(Text(NO_REGISTERS.format(unit=device.unit), "dim"))
    if device is not None and run.host_time:
        shown.append(Text(HOST_TIME, "dim"))
    ended = "stopped by the simulator" if run.finding is not None else describe_code(run.code)
    return Group(*shown, Text(f"{ended} after {run.seconds:.1f} s", "" if run.code == 0 else "red"))


def launch_table(launches: tuple[LaunchRecord, ...], device: Device | None) -> Table:
    """A row for each kernel and block, in the order of their first launches."""
    groups: dict[tuple[object, ...], list[LaunchRecord]] = {}
    for launch in launches:
        groups.setdefault((launch.spelling, launch.block, launch.shared, launch.static_shared), []).append(launch)
    columns = [place for place, name in enumerate(COLUMNS) if name != "regs" or device is None]
    rows = [row(group, device) for group in groups.values()]
    unit = units_of([device])
    return Table(
        tuple(COLUMNS[place].format(unit=unit) for place in columns),
        tuple(tuple(cells[place] for place in columns) for cells in rows),
        numbers=frozenset({"launches", "shared memory", "regs", f"blocks\nper {unit}"}),
    )


def row(group: Sequence[LaunchRecord], device: Device | None) -> tuple[str, ...]:
    """The cells of launches of one kernel that differ only in their grids."""
    launch = group[0]
    blocks = launch.max_blocks_per_sm
    resident = "" if blocks is None else str(blocks)  # on an SM, with their share of its threads if that is known
    if blocks is not None and device is not None:
        resident += f" ({100 * blocks * math.prod(launch.block) / device.maxThreadsPerMultiProcessor:.0f} %)"
    return (
        launch.spelling,
        str(len(group)),
        grids([launch.grid for launch in group]),
        "x".join(map(str, launch.block)),
        "-" if launch.static_shared is None else f"{launch.shared + launch.static_shared} B",
        "" if launch.regs is None else str(launch.regs),
        resident,
    )


def grids(sizes: Sequence[tuple[int, int, int]]) -> str:
    """`4x1x1`, or the smallest and the largest of several: `1x1x1 to 10x1x1`."""
    ordered = ["x".join(map(str, size)) for size in sorted(set(sizes), key=lambda size: (math.prod(size), size))]
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"
