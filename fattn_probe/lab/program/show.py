"""What `fattn-probe program` prints after a program's own output."""

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.figures import number_of
from fattn_probe.base.process import describe_code
from fattn_probe.base.tables import Table
from fattn_probe.cases.device import Device, Target, units_of
from fattn_probe.lab.program.execute import ProgramRun
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.machine.run.frames import describe_finding

COLUMNS = ("kernel", "launches", "grid", "block", "shared memory", "regs", "blocks\non an {unit}")
HOST_TIME = (
    "The times that this program measured with events belong to this computer: the simulator has no notion of time."
)
NO_REGISTERS = "Blocks on an {unit}: at most, since the registers of these kernels are not known."


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
        numbers=frozenset({"launches", "shared memory", "regs", f"blocks\non an {unit}"}),
    )


def row(group: Sequence[LaunchRecord], device: Device | None) -> tuple[str, ...]:
    """The cells of launches of one kernel that differ only in their grids."""
    launch = group[0]
    return (
        launch.spelling,
        str(len(group)),
        grids([launch.grid for launch in group]),
        "x".join(map(str, launch.block)),
        "-" if launch.static_shared is None else f"{launch.shared + launch.static_shared} B",
        "" if launch.regs is None else str(launch.regs),
        resident(launch, device),
    )


def grids(sizes: Sequence[tuple[int, int, int]]) -> str:
    """`4x1x1`, or the smallest and the largest of several: `1x1x1 to 10x1x1`."""
    ordered = ["x".join(map(str, size)) for size in sorted(set(sizes), key=lambda size: (math.prod(size), size))]
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"


def resident(launch: LaunchRecord, device: Device | None) -> str:
    """How many blocks fit on an SM and, if the device's figures are known, the share of its threads."""
    blocks = launch.max_blocks_per_sm
    if blocks is None or device is None:
        return "" if blocks is None else str(blocks)
    return f"{blocks} ({100 * blocks * math.prod(launch.block) / device.maxThreadsPerMultiProcessor:.0f} %)"
