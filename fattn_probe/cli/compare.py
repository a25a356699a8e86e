"""The command line of `compare`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group

from fattn_probe.base.activity import Activity
from fattn_probe.base.console import NOTES, show
from fattn_probe.base.errors import BuildError, InputError
from fattn_probe.base.files import write_text
from fattn_probe.cases import MOST_REPEATS
from fattn_probe.cases.scenario.cases import RECORDED, cases_of
from fattn_probe.cli import flags, setup
from fattn_probe.cli.setup import BuildFlags, Simulate, Where
from fattn_probe.daily.regress.telling import Telling, telling
from fattn_probe.machine.run.base import base_of
from fattn_probe.machine.run.capture import inputs_of, read_capture
from fattn_probe.machine.run.command import Work
from fattn_probe.machine.run.prepare import prepare
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.verdict.diagnose.difference import compare_captures
from fattn_probe.verdict.judge.cases import judge_cases
from fattn_probe.verdict.judge.checks import QUERIES_ALONE, Checks, UseModel, sample_of
from fattn_probe.verdict.judge.judgement import Judgement, raise_if_failed
from fattn_probe.verdict.measure.verdict import Status
from fattn_probe.verdict.present import tables as verdicts
from fattn_probe.verdict.present.base import BesideBase, beside_base
from fattn_probe.verdict.present.error_map import plot_row
from fattn_probe.verdict.present.tables import difference_as_json, rows_as_json
from fattn_probe.verdict.truth.reference.adapter import check_inputs, check_output


@dataclass(frozen=True)
class JudgeFlags:
    """The checks"""

    model: Annotated[
        UseModel,
        typer.Option(
            help="When to use the rounding model; auto: for cases of up to 4 GFLOP; never: the error model decides."
        ),
    ] = "auto"
    repeat: Annotated[
        int, typer.Option(help="Runs of each case; all must give the same bits.", min=1, max=MOST_REPEATS)
    ] = 1
    batch_invariance: Annotated[
        bool, typer.Option("--batch-invariance", help="Also compute some queries alone; their bits must not change.")
    ] = False
    roundings: Annotated[
        bool,
        typer.Option("--roundings", help="Also fail accurate outputs whose bits differ from the rounding model."),
    ] = False
    kernels: Annotated[
        bool,
        typer.Option("--kernels", help="Also fail if the kernels differ from those of the default release."),
    ] = False
    sample: Annotated[
        str, typer.Option(help="Rows to check exactly; auto: all, except in very large cases.", metavar="N|all|auto")
    ] = "auto"

    @property
    def checks(self) -> Checks:
        """The checks for a case."""
        alone = QUERIES_ALONE if self.batch_invariance else 0
        return Checks(self.model, sample_of(self.sample), self.repeat, alone, self.roundings, self.kernels)


def compare(
    paths: Annotated[
        list[Path] | None,
        flags.scenario_argument(
            "Shipped scenarios or cases by name, files, or FILE/CASE; or, without --on, two captures; "
            "default for a changed source: the shipped cases most likely to show the change.",
        ),
    ] = None,
    *,
    where: Where,
    judge: JudgeFlags,
    build: BuildFlags,
    simulate: Simulate,
    plot: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Write error maps to this folder, as PNG and SVG.", metavar="DIR"),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, help="Write an HTML page that steps through the first failing case, with each tile's error."
        ),
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
    """Judge outputs with an exact float64 reference and the error model, or compare two captures."""
    paths = paths or []
    if len(paths) == 2 and not (where.on or kernel) and all(path.suffix == RECORDED for path in paths):
        compare_files(paths, as_json)
        return
    if plot is not None:
        setup.require_matplotlib()
    if kernel and (plot is not None or html is not None or judge.repeat > 1 or judge.batch_invariance):
        raise InputError("--kernel cannot be combined with --plot, --html, --repeat or --batch-invariance")
    checks = judge.checks
    work = setup.work_of(cases_of(paths), where) if paths or kernel else []
    if kernel:
        from fattn_probe.cli.kernel import compare_kernels  # from a later room, which only --kernel needs
        from fattn_probe.lab.kernels.contender import How

        how = How(simulation=setup.simulation_of(simulate), check=build.check, timeout=where.timeout)
        compare_kernels(kernel, build, work, checks, how, maps=maps, as_json=as_json)
        return
    options = setup.run_options(build, where, simulate)
    base = base_of(options)
    told = telling(options, base) if base else None
    parts = [(options, checks, work)] if work else list(telling_parts(told, options, checks, where))
    rows, besides, sessions = list[Judgement](), list[BesideBase](), list[tuple[Session, Work]]()
    uncompiled = list[str]()
    with Activity(NOTES, sum(setup.number_of(some) for _, _, some in parts)) as activity:
        for own, judged_by, planned in parts:
            session, first = setup.session_of(own, activity), len(rows)
            activity.step("finding the kernels that the cases need")
            without = prepare(session, planned, partly=True)
            some = [(case, [on for on in targets if str(on) not in without]) for case, targets in planned]
            for error in without.values():
                activity.note(error, "red")
            uncompiled += without
            sessions.append((session, some))
            for row in judge_cases(session, some, judged_by, activity.step):
                activity.count(row.status)
                if plot is not None:
                    for path in plot_row(row, plot):
                        activity.note(f"wrote {path}")
                rows.append(row)
            if base := base_of(own):
                activity.step(f"finding what {base.words} launches")
                besides.append(beside_base(base, some, rows[first:], session.progress))
    if html is not None:
        write_failing(html, rows, sessions)
    beside = BesideBase.joined(besides)
    document = rows_as_json(rows) | {"launches": beside and beside.document(), "change": told and told.document()}
    lines = [*(beside.lines() if beside else ()), *(told.lines(rows) if told else ())]
    show(document, lambda: Group(verdicts.render(rows, maps), *lines), as_json)
    raise_if_failed(rows)
    if uncompiled:
        raise BuildError(f"the source does not compile for {', '.join(uncompiled)}, so nothing was judged there")


def write_failing(path: Path, rows: Sequence[Judgement], sessions: Sequence[tuple[Session, Work]]) -> None:
    """Write the page for the first failing case, or for the first case if none fails."""
    from fattn_probe.daily.inspect.replay.make import replay_of  # for this page only
    from fattn_probe.daily.inspect.replay.page import replay_page

    row = min(rows, key=lambda row: row.status is not Status.FAIL)
    found = ((session, case, target) for session, work in sessions for case, targets in work for target in targets)
    session, case, target = next(one for one in found if (one[1].name, str(one[2])) == (row.case, row.on))
    with inputs_of(case) as inputs:
        replay = replay_of(case, dict(inputs), target, session, row)
    write_text(path, replay_page([replay], f"{row.case} on {row.on}"))
    NOTES.print(f"wrote {path}")


def telling_parts(
    told: Telling | None, options: RunOptions, checks: Checks, where: Where
) -> Iterator[tuple[RunOptions, Checks, Work]]:
    """The cases most likely to show a change, grouped by suite entry, which says how to build and judge them."""
    if told is None:
        raise InputError("no scenario was given, and the source has no changed attention file: name a scenario")
    given = setup.targets_of(where) if where.on else []
    chosen = told.chosen()
    said = ", ".join(f"{case.name} on {where.on or target}" for _, target, case in chosen)
    NOTES.print(f"no scenario was given: comparing the cases most likely to show the change ({said})", style="dim")
    for entry in {entry.name: entry for entry, _, _ in chosen}.values():
        own = replace(options, quants=(*options.quants, *entry.quants))
        if options.flavour == "release":
            own = replace(own, flavour=entry.flavour)
        strict = replace(checks, roundings=checks.roundings or entry.check.roundings)
        yield own, strict, [(case, given or [target]) for part, target, case in chosen if part.name == entry.name]


def compare_files(paths: Sequence[Path], as_json: bool) -> None:
    """Compare two captures of one op; InputError if a capture contradicts its own op."""
    a, b = (read_capture(path) for path in paths)
    for capture in (a, b):
        check_inputs(capture.op, capture.inputs, capture.name)
        check_output(capture.op, capture.dst, capture.name)
    names = (paths[0].name, paths[1].name) if paths[0].name != paths[1].name else (str(paths[0]), str(paths[1]))
    difference = compare_captures(a, b, names)
    show(difference_as_json(difference), lambda: verdicts.render_difference(difference), as_json)
