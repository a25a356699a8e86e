"""What `fattn-probe program` prints after a program's own output."""

from collections import Counter
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.device import Device, Target
from fattn_probe.launch.record import LaunchRecord
from fattn_probe.process import describe_code
from fattn_probe.program.execute import ProgramRun
from fattn_probe.run.frames import describe_fault
from fattn_probe.tables import Table

COLUMNS = ("kernel", "launches", "grid", "block", "shared memory", "regs", "blocks\non an SM")
HOST_TIME = (
    "The times that this program measured with CUDA's events are this computer's: the simulator has no notion of time."
)
NO_REGISTERS = "Blocks on an SM: at most, since only nvcc knows the registers of these kernels."


def render(run: ProgramRun, target: Target, *, checked: bool) -> RenderableType:
    """The launches, the finding, and how the program ended."""
    return Group(*parts(run, target, checked=checked))


def parts(run: ProgramRun, target: Target, *, checked: bool) -> Iterator[RenderableType]:
    """The parts of the report, from top to bottom."""
    device = target.device
    count = len(run.launches)
    yield Text(f"── {run.on}: {count} {'launch' if count == 1 else 'launches'}", "dim")
    if run.launches:
        yield launch_table(run.launches, device)
    if run.fault is not None:
        yield Text(describe_fault(run.fault), "red")
    elif checked:
        yield Text("the checker found nothing", "green")
    if device is not None and run.launches:
        yield Text(NO_REGISTERS, "dim")
    if device is not None and run.host_time:
        yield Text(HOST_TIME, "dim")
    ended = "stopped by the simulator" if run.fault is not None else describe_code(run.code)
    yield Text(f"{ended} after {run.seconds:.1f} s", "" if run.code == 0 else "red")


def launch_table(launches: tuple[LaunchRecord, ...], device: Device | None) -> Table:
    """A row for each kernel and geometry, in the order of their first launches."""
    counts = Counter((launch.key, launch.static_shared) for launch in launches)
    first = {(launch.key, launch.static_shared): launch for launch in reversed(launches)}
    rows = [row(first[key], count, device) for key, count in counts.items()]
    columns = [place for place, name in enumerate(COLUMNS) if name != "regs" or device is None]
    return Table(
        tuple(COLUMNS[place] for place in columns),
        tuple(tuple(cells[place] for place in columns) for cells in rows),
        numbers=frozenset({"launches", "shared memory", "regs", "blocks\non an SM"}),
    )


def row(launch: LaunchRecord, count: int, device: Device | None) -> tuple[str, ...]:
    """The cells of one kernel and geometry."""
    grid, block = ("x".join(map(str, size)) for size in (launch.grid, launch.block))
    blocks = launch.max_blocks_per_sm
    resident = "" if blocks is None else str(blocks)
    if device is not None and blocks is not None:
        threads = blocks * launch.block[0] * launch.block[1] * launch.block[2]
        resident += f" ({100 * threads / device.maxThreadsPerMultiProcessor:.0f} %)"
    return (
        launch.spelling,
        str(count),
        grid,
        block,
        f"{launch.shared + (launch.static_shared or 0)} B",
        "" if launch.regs is None else str(launch.regs),
        resident,
    )
