"""Create the replay of a run from its facts, its judgement and, if there is one, a trace."""

from collections.abc import Iterator, Sequence

import numpy as np

from fattn_probe.base.arrays import F64
from fattn_probe.base.errors import InputError
from fattn_probe.base.figures import number_of
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.inspect.facts import Facts
from fattn_probe.daily.inspect.replay.replay import (
    Marked,
    Replay,
    StepPlace,
    Traced,
    kinds_of,
    lanes_of,
    masks_of,
    names_of_tiles,
)
from fattn_probe.daily.inspect.replay.row_numbers import RowNumbers, numbers_of
from fattn_probe.daily.inspect.trace.fragments import LANES
from fattn_probe.daily.inspect.trace.reference import JudgedTrace, TracedStep
from fattn_probe.daily.inspect.trace.show import headline
from fattn_probe.daily.inspect.trace.stages import ModelledRows, Row, Stage
from fattn_probe.daily.inspect.view.error_tiles import divided
from fattn_probe.llama.launch.architecture import arch_number, generation_of
from fattn_probe.llama.launch.constants import known_constants
from fattn_probe.llama.launch.geometry import Geometry, geometry_of
from fattn_probe.llama.launch.tiles import index_of, ntiles
from fattn_probe.machine.run.session import Session, arch_of
from fattn_probe.verdict.judge.judgement import Judgement
from fattn_probe.verdict.measure.metrics import worst_rows
from fattn_probe.verdict.measure.verdict import Status
from fattn_probe.verdict.truth.reference.adapter import Inputs

MOST_ROWS, MOST_BYTES = 32, 4_500_000


def replay_of(
    case: Case,
    inputs: Inputs,
    target: Target,
    session: Session,
    output: Judgement,
    *,
    facts: Facts | None = None,
    trace: JudgedTrace | None = None,
    beside: Replay | None = None,
) -> Replay:
    """Create the replay of a run; without facts, the division of work is derived from the launches.

    The rows are those of the replay `beside`, or by default the row that the trace followed and the worst rows.

    Raises InputError if no attention kernel with known sizes ran.
    """
    constants, arch = known_constants(session.options.tree), arch_number(arch_of(target))
    geometry = geometry_of(case.op, output.launches, arch, constants)
    if geometry is None:
        raise InputError(f"{case.name} on {target}: no attention kernel with known sizes ran, so there is no replay")
    kernel, notes = geometry.kernel, list[str]()
    tree, patches = session.options.tree, " ".join(patch.name for patch in session.options.patches)
    about = {"source": tree.spec if tree else "", "patches": patches, "kernel": kernel.spelling}
    if facts is None:
        facts = divided(geometry, about)
        notes.append("The division of work follows from the launch; the blocks were not read.")
        if kernel.scanned:
            notes.append("A kernel scanned the mask first: blocks stop where it hides all remaining KV rows.")
    rows, row_errors = tuple[RowNumbers, ...](), _errors(output)
    if constants is None:
        notes.append("The values of rows are not shown: there is no rounding model for this source's kernels.")
    elif kernel.sparse:
        notes.append("The values of rows are not shown: this kernel gathers its KV rows.")
    else:
        modelled = ModelledRows(case, inputs, kernel, arch, constants)
        first = [one.row for one in beside.rows] if beside else [trace.row] if trace and trace.row else []
        rows = tuple(_rows(modelled, geometry, row_errors, first))
        shown = f"{number_of(len(rows), 'row')} of {number_of(ntiles(geometry.grid), 'tile')}"
        notes.append(f"The page shows the values of {shown}: the worst row of each tile, the worst of all first.")
        if assumed := modelled.assumed(geometry):
            notes.append(f"The kernel's values rest on an assumption: {assumed}.")
    if row_errors is None:
        notes.append("There is no map of errors: only a sample of the output was checked, or there is no output.")
    worst_sequence, worst = 0, dict[int, float]()
    if row_errors is not None:
        tiles, worst_sequence = geometry.indices(row_errors.shape), int(row_errors.max(axis=(1, 2)).argmax())
        worst = {index: float(row_errors[tiles == index].max(initial=0.0)) for index in range(ntiles(geometry.grid))}
    if trace is None:
        notes.append("Registers were not read (not traced).")
    return Replay(
        title=f"{case.name} on {target}",
        about={name: value for name, value in about.items() if value},
        kinds=kinds_of(kernel.family, tree, session.options.patches),
        lanes=lanes_of(facts, case, geometry),
        facts=facts,
        step_rows=geometry.rows,
        n_kv=geometry.n_kv,
        tiles=names_of_tiles(case, geometry),
        masks=masks_of(case, inputs, geometry),
        rows=rows,
        outputs={} if output.dst is None else {one.row: output.dst[one.row].astype(np.float64) for one in rows},
        tile_errors=worst,
        errors=None if row_errors is None else row_errors[worst_sequence].T,
        errors_sequence=worst_sequence,
        sizes=case.op.sizes,
        chunk=generation_of(arch).chunk if kernel.family.stream_k else LANES,
        geometry=geometry,
        traced=tuple(_traced(trace, geometry, facts)) if trace else (),
        marked=_marked(output, geometry, facts, trace),
        status=output.status.value,
        verdict=output.reason,
        notes=tuple(notes),
    )


def _errors(output: Judgement) -> F64 | None:
    """The largest error of each row (n_seq, n_q, n_head), in units of its expected error; None if unknown."""
    if output.dst is None or output.verdict.deviation is None:
        return None
    found: F64 = output.verdict.deviation.of(output.dst).max(axis=3)
    return found


def _rows(modelled: ModelledRows, geometry: Geometry, errors: F64 | None, first: Sequence[Row]) -> Iterator[RowNumbers]:
    """Yield the values of the rows `first`, then of each other tile's worst row, while the page stays small."""
    sizes = modelled.case.op.sizes
    tiles = geometry.indices(sizes.dst[:3])
    errors = np.zeros(sizes.dst[:3]) if errors is None else errors
    found = {int(tiles[row]): row for row in first}
    for row in worst_rows(errors, errors.size):
        found.setdefault(int(tiles[row]), row)
        if len(found) >= MOST_ROWS:
            break
    size = 11 * (geometry.grid.iter_k * (geometry.rows + geometry.kernel.DV))  # kernel and error, as base64
    for row in list(found.values())[: max(1, MOST_BYTES // size)]:
        yield numbers_of(modelled, geometry, row)


def _places(
    trace: JudgedTrace, geometry: Geometry, facts: Facts
) -> Iterator[tuple[StepPlace, str, TracedStep | Stage]]:
    """Yield everything that a trace read, in its order, each with its place and the warp in which it was read."""
    lane, who = next(f"block={one.block}" for one in facts.blocks if one.blockIdx == trace.block), headline(trace)
    for tile in trace.tiles:
        index = index_of(tile.tile.tile, geometry.grid)
        for step in tile.steps:
            yield StepPlace(lane, index, step.kb0), who, step
    for stage in trace.stages:
        place = StepPlace(lane, -1, stage.kb0)
        if stage.stored:
            place = StepPlace(f"block={stage.where.split()[-1]}")
        elif stage.where.startswith("dst") and trace.row is not None:
            place = _end_of(geometry, trace.row)
        yield place, who if stage.kb0 is not None else stage.where, stage


def _traced(trace: JudgedTrace, geometry: Geometry, facts: Facts) -> Iterator[Traced]:
    """Yield the quantities that were read, step by step."""
    found: dict[tuple[StepPlace, str], list[tuple[str, float, float, int]]] = {}
    for place, who, read in _places(trace, geometry, facts):
        some = found.setdefault((place, who), [])
        if isinstance(read, Stage):
            largest, error = (float(np.abs(values).max(initial=0.0)) for values in (read.found, read.error))
            some.append((read.quantity, largest, error, int(read.differs.sum())))
        else:
            beyond = {deviation.quantity: deviation.count for deviation in read.deviations}
            some += [(one.name, one.largest, one.error, beyond.get(one.name, 0)) for one in read.checked]
    yield from (Traced(place, who, tuple(some)) for (place, who), some in found.items())


def _marked(output: Judgement, geometry: Geometry, facts: Facts, trace: JudgedTrace | None) -> Marked | None:
    """The first deviation in the trace; without a trace, the worst element of a wrong output."""
    for place, _, read in _places(trace, geometry, facts) if trace else ():
        if read.deviation if isinstance(read, Stage) else read.deviations:
            assert trace is not None and trace.deviation is not None
            return Marked(f"first deviation: {trace.deviation.words}", place)
    if output.status is Status.FAIL and output.diagnosis and output.diagnosis.worst:
        element = output.diagnosis.worst[0]
        words = f"worst element: {element.at} is {element.value:.7g}, not {element.expected:.7g}"
        return Marked(words, _end_of(geometry, (element.at.sequence, element.at.query, element.at.head)))
    return None


def _end_of(geometry: Geometry, row: Row) -> StepPlace:
    """The step in which a row is written to dst."""
    tile = geometry.tile_of(*row)
    parts = geometry.parts_of(tile)
    return StepPlace(f"tile={index_of(tile, geometry.grid)}" if len(parts) > 1 else f"block={next(iter(parts))}")
