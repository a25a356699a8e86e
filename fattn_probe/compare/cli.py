"""The command line of `compare`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe import flags, setup
from fattn_probe.activity import Activity
from fattn_probe.compare.diagnose.difference import compare_captures
from fattn_probe.compare.judge.cases import judge_cases
from fattn_probe.compare.judge.checks import QUERIES_ALONE, Checks, UseModel, sample_of
from fattn_probe.compare.judge.judgement import Judgement, raise_if_failed
from fattn_probe.compare.present import tables as verdicts
from fattn_probe.console import NOTES, show
from fattn_probe.errors import InputError
from fattn_probe.run.capture import read_capture
from fattn_probe.run.simulator import Simulation
from fattn_probe.scenario.files import RECORDED, cases_of
from fattn_probe.source import DEFAULT_SOURCE
from fattn_probe.truth.reference.adapter import check_inputs, check_output


def compare(
    paths: Annotated[
        list[Path], flags.scenario_argument("Shipped scenarios by name, or files; or, without --on, two captures.")
    ],
    on: flags.On = "",
    model: Annotated[
        UseModel, typer.Option(help="Compare with the rounding model too; auto: for cases of up to 4 GFLOP.")
    ] = "auto",
    plot: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Write error maps to this folder, as PNG and SVG.", metavar="DIR"),
    ] = None,
    maps: Annotated[bool, typer.Option("--maps/--no-maps", help="Draw error maps of failing cases.")] = True,
    repeat: Annotated[
        int, typer.Option(help="Runs of each case; all must give the same bits.", min=1, max=flags.MOST_REPEATS)
    ] = 1,
    batch_invariance: Annotated[
        bool, typer.Option("--batch-invariance", help="Also compute some queries alone; their bits must be the same.")
    ] = False,
    roundings: Annotated[
        bool,
        typer.Option("--roundings", help="Fail accurate outputs too, if their bits are not the model's."),
    ] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Fail right outputs too, if the default release has other kernels here.")
    ] = False,
    kernel: Annotated[
        str,
        typer.Option(
            help="Kernels to compare with one another, comma-separated (`fattn-probe kernel list`).",
            metavar="llama,naive,...|FILE.cu:NAME",
        ),
    ] = "",
    sample: Annotated[
        str, typer.Option(help="Rows to check exactly; auto: all, except in very large cases.", metavar="N|all|auto")
    ] = "auto",
    source: flags.Source = DEFAULT_SOURCE,
    patch: flags.Patches = [],  # noqa: B006
    debug: flags.Debug = False,
    check: flags.Check = False,
    sanitize: flags.Sanitize = "",
    quants: flags.Quants = "",
    folder: flags.BuildFolder = None,
    schedule: flags.Schedule = 0,
    threads: flags.Threads = None,
    timeout: flags.Timeout = 600.0,
    devices: flags.Devices = None,
    as_json: flags.Json = False,
) -> None:
    """Judge the output of scenarios by an exact float64 reference and the error model, or compare two captures."""
    if len(paths) == 2 and not (on or kernel) and all(path.suffix == RECORDED for path in paths):
        compare_files(paths, as_json)
        return
    if plot is not None:
        setup.require_matplotlib()
    if kernel and (plot is not None or repeat > 1 or batch_invariance):
        raise InputError("--kernel does not go with --plot, --repeat and --batch-invariance")
    checks = Checks(model, sample_of(sample), repeat, QUERIES_ALONE if batch_invariance else 0, roundings, kernels)
    chosen = setup.BuildFlags(source, patch, debug, check, sanitize, quants, folder)
    work = setup.work_of(cases_of(paths), on, devices, NOTES, amd=bool(kernel))
    if kernel:
        from fattn_probe.kernels.cli import compare_kernels  # a later room, which only --kernel needs
        from fattn_probe.kernels.contender import How

        how = How(simulation=Simulation(schedule, threads), check=check, timeout=timeout)
        compare_kernels(kernel, chosen, work, checks, how, maps=maps, as_json=as_json)
        return
    options = chosen.run_options(NOTES, Simulation(schedule, threads), timeout=timeout)
    rows = []
    with Activity(NOTES, setup.number_of(work)) as activity:
        session = setup.prepared_session(options, work, activity)
        for row in judge_cases(session, work, checks, activity.step):
            activity.count(row.status)
            if plot is not None:
                write_pictures(row, plot, activity)
            rows.append(row)
    show(verdicts.rows_as_json(rows), lambda: verdicts.render(rows, maps), as_json)
    raise_if_failed(rows)


def write_pictures(row: Judgement, folder: Path, activity: Activity) -> None:
    """Write the error maps of a row, and name the files."""
    from fattn_probe.compare.present.plot import plot_row  # matplotlib takes a second to load

    for path in plot_row(row, folder):
        activity.note(f"wrote {path}")


def compare_files(paths: Sequence[Path], as_json: bool) -> None:
    """Compare two captures of one op; InputError if a capture contradicts its own op."""
    a, b = (read_capture(path) for path in paths)
    for capture in (a, b):
        check_inputs(capture.op, capture.inputs, capture.name)
        check_output(capture.op, capture.dst, capture.name)
    difference = compare_captures(a, b, (paths[0].name, paths[1].name))
    show(verdicts.difference_as_json(difference), lambda: verdicts.render_difference(difference), as_json)
