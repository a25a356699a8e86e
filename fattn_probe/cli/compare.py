"""The command line of `compare`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group

from fattn_probe.base.activity import Activity
from fattn_probe.base.console import NOTES, show
from fattn_probe.base.errors import InputError
from fattn_probe.cases import MOST_REPEATS
from fattn_probe.cases.scenario.files import RECORDED, cases_of
from fattn_probe.cli import flags, setup
from fattn_probe.cli.options import BuildFlags, Simulate, Where
from fattn_probe.machine.run.base import base_of
from fattn_probe.machine.run.capture import read_capture
from fattn_probe.verdict.diagnose.difference import compare_captures
from fattn_probe.verdict.judge.cases import judge_cases
from fattn_probe.verdict.judge.checks import QUERIES_ALONE, Checks, UseModel, sample_of
from fattn_probe.verdict.judge.judgement import Judgement, raise_if_failed
from fattn_probe.verdict.present import tables as verdicts
from fattn_probe.verdict.present.base import beside_base
from fattn_probe.verdict.present.document import difference_as_json, rows_as_json
from fattn_probe.verdict.present.error_map import plot_row
from fattn_probe.verdict.truth.reference.adapter import check_inputs, check_output


@dataclass(frozen=True)
class JudgeFlags:
    """What is checked"""

    model: Annotated[
        UseModel,
        typer.Option(
            help="Use the rounding model too; auto: for cases of up to 4 GFLOP; never: the error model decides."
        ),
    ] = "auto"
    repeat: Annotated[
        int, typer.Option(help="Runs of each case; all must give the same bits.", min=1, max=MOST_REPEATS)
    ] = 1
    batch_invariance: Annotated[
        bool, typer.Option("--batch-invariance", help="Also compute some queries alone; their bits must be the same.")
    ] = False
    roundings: Annotated[
        bool,
        typer.Option("--roundings", help="Fail accurate outputs too, if their bits are not the model's."),
    ] = False
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Fail right outputs too, if the default release has other kernels here.")
    ] = False
    sample: Annotated[
        str, typer.Option(help="Rows to check exactly; auto: all, except in very large cases.", metavar="N|all|auto")
    ] = "auto"

    @property
    def checks(self) -> Checks:
        """What judges a case."""
        alone = QUERIES_ALONE if self.batch_invariance else 0
        return Checks(self.model, sample_of(self.sample), self.repeat, alone, self.roundings, self.kernels)


def compare(
    paths: Annotated[
        list[Path], flags.scenario_argument("Shipped scenarios by name, or files; or, without --on, two captures.")
    ],
    *,
    where: Where,
    judge: JudgeFlags,
    build: BuildFlags,
    simulate: Simulate,
    plot: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Write error maps to this folder, as PNG and SVG.", metavar="DIR"),
    ] = None,
    maps: Annotated[bool, typer.Option("--maps/--no-maps", help="Draw error maps of failing cases.")] = True,
    kernel: Annotated[
        str,
        typer.Option(
            help="Kernels to compare with one another, comma-separated (`fattn-probe kernel list`).",
            metavar="llama,naive,...|FILE.cu:NAME",
        ),
    ] = "",
    as_json: flags.Json = False,
) -> None:
    """Judge the output of scenarios by an exact float64 reference and the error model, or compare two captures."""
    if len(paths) == 2 and not (where.on or kernel) and all(path.suffix == RECORDED for path in paths):
        compare_files(paths, as_json)
        return
    if plot is not None:
        setup.require_matplotlib()
    if kernel and (plot is not None or judge.repeat > 1 or judge.batch_invariance):
        raise InputError("--kernel does not go with --plot, --repeat and --batch-invariance")
    checks = judge.checks
    work = setup.work_of(cases_of(paths), where, amd=bool(kernel))
    if kernel:
        from fattn_probe.cli.kernel import compare_kernels  # a later room, which only --kernel needs
        from fattn_probe.lab.kernels.contender import How

        how = How(simulation=setup.simulation_of(simulate), check=build.check, timeout=where.timeout)
        compare_kernels(kernel, build, work, checks, how, maps=maps, as_json=as_json)
        return
    options = setup.run_options(build, where, simulate)
    rows = []
    with Activity(NOTES, setup.number_of(work)) as activity:
        session = setup.prepared_session(options, work, activity)
        for row in judge_cases(session, work, checks, activity.step):
            activity.count(row.status)
            if plot is not None:
                write_pictures(row, plot, activity)
            rows.append(row)
        beside = None
        if base := base_of(options):
            activity.step(f"finding what {base.words} launches")
            beside = beside_base(base, work, rows, session.progress)
    document = rows_as_json(rows) | {"launches": beside and beside.document()}
    show(document, lambda: Group(verdicts.render(rows, maps), *(beside.lines() if beside else ())), as_json)
    raise_if_failed(rows)


def write_pictures(row: Judgement, folder: Path, activity: Activity) -> None:
    """Write the error maps of a row, and name the files."""
    for path in plot_row(row, folder):
        activity.note(f"wrote {path}")


def compare_files(paths: Sequence[Path], as_json: bool) -> None:
    """Compare two captures of one op; InputError if a capture contradicts its own op."""
    a, b = (read_capture(path) for path in paths)
    for capture in (a, b):
        check_inputs(capture.op, capture.inputs, capture.name)
        check_output(capture.op, capture.dst, capture.name)
    difference = compare_captures(a, b, (paths[0].name, paths[1].name))
    show(difference_as_json(difference), lambda: verdicts.render_difference(difference), as_json)
