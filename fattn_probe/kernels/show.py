"""The table of `compare --kernel`, and its JSON document."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.compare.present.document import rows_as_json
from fattn_probe.compare.present.tables import STYLES, by_design, explanations
from fattn_probe.kernels.command import Row
from fattn_probe.kernels.contender import Contender
from fattn_probe.kernels.packages import Package
from fattn_probe.kernels.timing import Speed
from fattn_probe.profile.roofline import Roof, roof_of
from fattn_probe.tables import Table

COLUMNS = ("case\non", "kernel", "NMSE\nmax error", "by design", "bits")
TIMED = ("time\ninterval", "TFLOP/s\nGB/s", "of the\nroofline")
NUMBERS = frozenset(TIMED)
DIGITS = 8
"""Of an output's sha256: equal digits, equal bits."""


def render(rows: Sequence[Row], contenders: Sequence[Contender | None], *, maps: bool) -> RenderableType:
    """A table of the rows, with times if some were timed, then what needs an explanation."""
    timed = TIMED if any(row.seconds for row in rows) else ()
    columns = (*COLUMNS, *timed, "verdict")
    pairs = zip(rows, [None, *rows], strict=False)
    cells = tuple(tuple(cells_of(row, before, timed=bool(timed))) for row, before in pairs)
    table = Table(columns, cells, NUMBERS & set(columns), heading=("case\non", "kernel"))
    explained = explanations([row.named for row in rows], maps)
    return Group(table, Text(), *notes(rows, contenders, timed=bool(timed)), *explained)


def cells_of(row: Row, before: Row | None, *, timed: bool) -> Iterator[Text]:
    """A row's cells; the case and the target stand once above the kernels that compute it."""
    verdict = row.judgement.verdict
    metrics = verdict.metrics
    same = before is not None and (before.case, before.target) == (row.case, row.target)
    yield Text("" if same else f"{row.case.name}\n{row.target}")
    yield Text(row.kernel)
    yield Text("-" if metrics is None else f"{metrics.nmse:.2e}\n{metrics.max_abs:.2e}")
    yield Text(by_design(verdict.design))
    yield Text((row.judgement.output or "-")[:DIGITS])
    if timed:
        yield from (Text(cell) for cell in speed_cells(row))
    yield Text(row.judgement.status.value, STYLES[row.judgement.status])


def speed_cells(row: Row) -> tuple[str, ...]:
    """The cells of a row's times."""
    if not row.seconds:
        return ("-",) * len(TIMED)
    speed, roof = Speed.of(row.op, row.seconds), roof_for(row)
    low, high = (1e6 * seconds for seconds in speed.interval)
    rates = f"{speed.flops / 1e12:.3g}\n{speed.bandwidth / 1e9:.3g}"
    share = "-" if roof is None else f"{100 * speed.share(roof):.2g} %"
    return f"{1e6 * speed.median:.4g} µs\n{low:.4g} to {high:.4g}", rates, share


def roof_for(row: Row) -> Roof | None:
    """The roofline of a row's GPU, by its tensor cores whatever the kernel uses; None if it is not known."""
    return None if row.device is None else roof_of(row.device, tensor=True)


def notes(rows: Sequence[Row], contenders: Sequence[Contender | None], *, timed: bool) -> Iterator[Text]:
    """What the columns mean, and where to look further."""
    if len({row.judgement.output for row in rows if row.judgement.output}) > 1:
        yield Text("bits: the start of the output's sha256; equal outputs have equal ones", "dim")
    if timed:
        yield Text("time: the median and its 95 % interval; FLOP/s count what the mask hides too", "dim")
        yield Text("roofline: of the GPU's tensor cores and memory, for a kernel that reads each operand once", "dim")
    for one in contenders:
        if isinstance(one, Package) and one.off_gpu and any(ran_off_gpu(row, one.name) for row in rows):
            yield Text(f"{one.name}: {one.off_gpu}", "dim")
    for algorithm in dict.fromkeys(one.algorithm for one in contenders if one is not None and one.algorithm):
        names = [one.name for one in contenders if one is not None and one.algorithm == algorithm]
        case = rows[0].case.name.partition("/")[0]
        yield Text(f"algorithm of {', '.join(names)}: fattn-probe study {case} --algorithm {algorithm}", "dim")


def ran_off_gpu(row: Row, kernel: str) -> bool:
    """Whether a row is of a kernel that ran, but not on a real GPU."""
    return row.kernel == kernel and row.ran and row.target.engine != "cuda"


def document(rows: Sequence[Row]) -> dict[str, Any]:
    """The JSON document: that of `compare`, and for each row kernel, launches, seconds, flop and bytes."""
    found = rows_as_json([row.judgement for row in rows])
    for row, item in zip(rows, found["rows"], strict=True):
        speed = Speed.of(row.op, row.seconds)
        item |= {"contender": row.kernel, "launches": [launch.document() for launch in row.judgement.launches]}
        item |= {"seconds": list(speed.seconds), "flop": speed.flop, "bytes": speed.nbytes}
        roof = roof_for(row)
        item["roofline_share"] = speed.share(roof) if roof is not None and row.seconds else None
    return found
