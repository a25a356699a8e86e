"""The command line of `study`."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe.base.activity import Activity
from fattn_probe.base.console import NOTES, show
from fattn_probe.base.documents import plain
from fattn_probe.base.errors import FattnProbeError, InputError, LostError
from fattn_probe.base.files import write_text
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.cases import one_case
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cli import flags, setup
from fattn_probe.cli.commands import offered
from fattn_probe.cli.setup import BuildFlags, Simulate, Where
from fattn_probe.daily.inspect.facts import Facts
from fattn_probe.daily.inspect.inspector import InspectOptions, Inspector
from fattn_probe.lab.study.against import Against
from fattn_probe.lab.study.command import H200_SMS, Algorithm, Study, StudyOptions, raise_if_different, study_case
from fattn_probe.lab.study.papers import A100_SRAM
from fattn_probe.lab.study.precisions import measure
from fattn_probe.lab.study.show import StepLines, render, render_table3, step_lines_of, study_json
from fattn_probe.lab.study.warpgroups import Ring, Schedule
from fattn_probe.machine.run.command import describe

STEPS = 16


@dataclass(frozen=True)
class StudiedHead:
    """Subject of the study"""

    head: Annotated[int, typer.Option(help="The head to study.", min=0)] = 0
    sequence: Annotated[int, typer.Option(help="The sequence to study.", min=0)] = 0
    case_name: flags.CaseName = ""
    backward: Annotated[
        bool, typer.Option("--backward", help="Also run the backward pass, by recomputation from L.")
    ] = False
    fp8: Annotated[bool, typer.Option("--fp8", help="Measure the errors of f16 and FP8 attention on the head.")] = False


@dataclass(frozen=True)
class Tiles:
    """Tiles and pieces"""

    tile_q: Annotated[int | None, typer.Option(help="B_r, queries per tile (64); fa1: from --memory.", min=1)] = None
    tile_kv: Annotated[int | None, typer.Option(help="B_c, KV rows per tile (64); fa1: from --memory.", min=1)] = None
    memory: Annotated[int, typer.Option(help="fa1: on-chip memory M, in elements.", min=1)] = A100_SRAM
    splits: Annotated[int, typer.Option(help="split-kv: number of pieces.", min=1)] = 4
    blocks: Annotated[int, typer.Option(help="stream-k: number of blocks, without --inspected.", min=1)] = H200_SMS
    inspected: Annotated[
        Path | None, typer.Option(help="stream-k: take the blocks from the output of inspect --json.", metavar="FILE")
    ] = None


@dataclass(frozen=True)
class RealKernel:
    """The kernels of llama.cpp"""

    against: Annotated[
        str,
        typer.Option("--against", help="Also run the kernel on a simulated GPU, and compare a row.", metavar="TARGET"),
    ] = ""
    devices: flags.Devices = None


@dataclass(frozen=True)
class FlashAttention3:
    """FlashAttention-3"""

    schedule: Annotated[Schedule, typer.Option(help="fa3: which operations overlap.")] = "both"
    stages: Annotated[int, typer.Option(help="fa3: stages of the ring of K and V.", min=1)] = 2
    ring: Annotated[Ring, typer.Option(help="fa3: whether K and V share stages or have separate rings.")] = "apart"


@dataclass(frozen=True)
class ShownStudy:
    """Output"""

    steps: Annotated[int, typer.Option(help="Number of steps to print.", min=0)] = STEPS
    html: Annotated[
        Path | None, typer.Option(dir_okay=False, help="HTML page to write, which steps through the algorithm.")
    ] = None
    as_json: flags.Json = False


def study(
    path: flags.MaybeScenario = None,
    *,
    part: StudiedHead,
    tiles: Tiles,
    fa3: FlashAttention3,
    real: RealKernel,
    build: Annotated[BuildFlags, offered("source", "patch")],
    algorithm: Annotated[Algorithm, typer.Option(help="The algorithm to show; all algorithms are run.")] = "fa2",
    table3: Annotated[
        int | None, typer.Option(help="Reproduce table 3 of the FlashAttention-3 paper on N heads.", metavar="N", min=1)
    ] = None,
    shown: ShownStudy,
) -> None:
    """Trace an attention algorithm through one head, tile by tile, and compare all algorithms on it."""
    if table3 is not None:
        if path is not None:
            raise InputError(f"--table3 generates its own data; leave out {path}")
        with Activity(NOTES) as activity:
            measured = measure(table3, activity.step)
        show({"table3": plain(measured)}, lambda: render_table3(measured), shown.as_json)
        return
    if path is None:
        raise InputError("study needs a SCENARIO; `fattn-probe scenario list` has the shipped ones")
    options = StudyOptions(
        **asdict(tiles),
        head=part.head,
        sequence=part.sequence,
        backward=part.backward,
        fp8=part.fp8,
        **asdict(fa3),
    )
    case = one_case(path, part.case_name)
    with Activity(NOTES) as activity:
        done = study_case(case, algorithm, options, activity.step)
        lines = step_lines(build)
        beside = beside_kernel(case, done, real, build, most=shown.steps, activity=activity) if real.against else None
    if shown.html is not None:
        from fattn_probe.daily.inspect.replay.page import replay_page  # for this page only
        from fattn_probe.lab.study.replay import replay_of_study

        replay = replay_of_study(done, lines)
        write_text(shown.html, replay_page([replay], replay.title))
        NOTES.print(f"wrote {shown.html}")
    listed = [{"step": step, "places": places} for step, places in lines.items()]
    document = study_json(done) | {"lines": listed, "against": plain(beside)}
    show(document, lambda: render(done, shown.steps, lines, beside), shown.as_json)
    raise_if_different(done)


def step_lines(build: BuildFlags) -> StepLines:
    """llama.cpp's source lines for each step; empty, after a note, if the default source cannot be fetched."""
    try:
        return step_lines_of(setup.tree_of(build))
    except FattnProbeError as error:
        if build.source is not None:
            raise
        NOTES.print(f"llama.cpp's source lines are left out: {error}", style="yellow")
        return {}


def beside_kernel(
    case: Case, study: Study, real: RealKernel, build: BuildFlags, *, most: int, activity: Activity
) -> Against:
    """Follow the last query of the studied head through the kernel that a simulated GPU runs."""
    from fattn_probe.daily.inspect.trace.tracer import Tracer
    from fattn_probe.lab.study.against import read_against  # imports for this flag only

    target, *more = setup.targets_of(Where(on=real.against, devices=real.devices))
    if more or target.engine != "sim":
        raise InputError(f"--against {real.against}: name one simulated GPU, such as sim:h200")
    session = setup.session_of(setup.run_options(replace(build, debug=True), simulate=Simulate(threads=1)), activity)
    inspector, inputs = Inspector(session, InspectOptions()), make_inputs(case)
    activity.step(f"{case.name} on {target}: reading a row from the kernel")
    facts = inspector.inspect(case, inputs, target).result
    if not isinstance(facts, Facts):
        raise LostError(f"{case.name} on {target}: {describe(facts)}")
    row = study.options.sequence, case.op.sizes.n_q - 1, study.options.head
    return read_against(Tracer(inspector, case, inputs, target, facts), study.subject.tensors, row, most)
