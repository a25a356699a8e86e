"""The command line of `regress`, `diff` and `bisect`."""

import functools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import platformdirs
import typer

from fattn_probe.base.activity import Activity
from fattn_probe.base.console import NOTES, show
from fattn_probe.base.errors import InputError, RegressionError
from fattn_probe.base.figures import number_of
from fattn_probe.base.files import write_text, writing
from fattn_probe.base.host import user_name
from fattn_probe.cases.device import load_devices, parse_targets
from fattn_probe.cases.scenario.cases import cases_like, cases_of, one_case
from fattn_probe.cli import flags, setup
from fattn_probe.cli.commands import offered
from fattn_probe.cli.setup import SIMULATED, BuildFlags, Where
from fattn_probe.daily.ops.render import short
from fattn_probe.daily.regress import tables as regressing
from fattn_probe.daily.regress import versions
from fattn_probe.daily.regress.cluster import Cluster
from fattn_probe.daily.regress.compilers import Likely
from fattn_probe.daily.regress.entries import Given, entries_on_targets, run_suite
from fattn_probe.daily.regress.history import History, open_history
from fattn_probe.daily.regress.junit import junit
from fattn_probe.daily.regress.merge_base import merge_base_of
from fattn_probe.daily.regress.records import ALL, Result, RunPart, Shard, parse_shard
from fattn_probe.daily.regress.resume import finish, night_of
from fattn_probe.daily.regress.runner import Outcome, Standing, SuiteRunner
from fattn_probe.daily.regress.suite import load_suite
from fattn_probe.daily.regress.telling import telling
from fattn_probe.machine.run.base import base_of
from fattn_probe.machine.run.prepare import prepare
from fattn_probe.machine.run.runner import FAILED_ONCE, PASSES_ALONE
from fattn_probe.machine.run.session import Session
from fattn_probe.verdict.judge.checks import UseModel, sample_of

DEFAULT_HISTORY = Path(platformdirs.user_data_dir("fattn-probe")) / "history.db"
DEFAULT_SUITE = Path("quick")
HistoryFile = Annotated[Path, typer.Option("--history", help="The SQLite database of all runs.")]


@dataclass(frozen=True)
class SuiteChoice:
    """The cases, and how to judge them"""

    only: Annotated[str, typer.Option("--filter", help="Only cases whose name matches this regular expression.")] = ""
    model: Annotated[UseModel | None, typer.Option(help="Use of the rounding model; default: as in the suite.")] = None
    sample: Annotated[
        str, typer.Option(help="Rows to check exactly, instead of the suite's sample.", metavar="N|all|auto")
    ] = ""
    base: Annotated[
        str,
        typer.Option(
            "--base",
            help="Compare with the merge base of the checkout and this branch, which is also run; "
            "nothing runs if no attention file differs.",
            metavar="BRANCH",
        ),
    ] = ""
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not reuse verdicts from earlier runs.")] = False


@dataclass(frozen=True)
class Divided:
    """Processes, machines, and runs in several parts"""

    workers: Annotated[
        int | None, typer.Option(min=1, max=flags.MOST_THREADS, help="Number of processes; default: all cores.")
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue the last run that did not finish.")] = False
    shard: Annotated[
        str, typer.Option(help="Run only the K-th of N parts, such as 2/8; needs --run.", metavar="K/N")
    ] = ""
    night: Annotated[str, typer.Option("--run", help="Run name, shared by all shards.")] = ""
    dask: Annotated[str, typer.Option(help="Run on a dask cluster, such as tcp://node1:8786.", metavar="ADDRESS")] = ""

    def __post_init__(self) -> None:
        if self.shard and not self.night:
            raise InputError("--shard needs --run NAME; all shards of a run use the same name")


@dataclass(frozen=True)
class ForCI:
    """Files for a CI job"""

    markdown: Annotated[
        Path | None, typer.Option("--markdown", dir_okay=False, help="Append a summary to this file, for a CI job.")
    ] = None
    junit_file: Annotated[
        Path | None, typer.Option("--junit", dir_okay=False, help="Write JUnit XML to this file.")
    ] = None

    def write(self, found: Sequence[Outcome], said: str = "") -> None:
        """Write the requested files; the summary begins with `said`."""
        if self.junit_file is not None:
            write_text(self.junit_file, junit(found))
        if self.markdown is not None:
            with writing(self.markdown):
                self.markdown.parent.mkdir(parents=True, exist_ok=True)
                with self.markdown.open("a", encoding="utf-8") as file:
                    file.write(regressing.markdown(found, said))


def regress(
    suite_file: flags.SuiteFile = DEFAULT_SUITE,
    *,
    where: Where,
    chosen: SuiteChoice,
    build: Annotated[BuildFlags, offered("source", "patch", "folder")],
    divided: Divided,
    ci: ForCI,
    exit_first: Annotated[bool, typer.Option("-x", "--exitfirst", help="Stop at the first failure.")] = False,
    history_file: HistoryFile = DEFAULT_HISTORY,
    accept: Annotated[str, typer.Option(help="Make this run the baseline; say why.", metavar="WHY")] = "",
    as_json: flags.Json = False,
) -> None:
    """Run a suite, and report what changed since the last accepted run."""
    suite = load_suite(suite_file)
    sample = sample_of(chosen.sample) if chosen.sample else None
    given = Given(where.on, chosen.only, chosen.model, sample, where.devices, setup.note)
    pairs = list(entries_on_targets(suite, suite_file.parent, given))
    cluster = Cluster(divided.dask) if divided.dask else None
    share = parse_shard(divided.shard) if divided.shard else ALL
    build = replace(build, source=build.source or (suite.source if "source" in suite.model_fields_set else None))
    options = setup.run_options(build, where)
    base = merge_base_of(options.tree, chosen.base) if chosen.base else None
    if base is not None and not (base.changed or options.patches):
        said = f"no attention file differs from {base}: nothing to run"
        ci.write([], said)
        show(regressing.as_json([]), lambda: said, as_json)
        return
    with (
        open_history(history_file) as history,
        Activity(NOTES, words=f"finding the cases of {suite_file.stem} and their kernels") as activity,
    ):
        activity.begin()
        session, standing = setup.session_of(replace(options, beside_base=base is None), activity), Standing()
        targets = frozenset(str(target) for _, target in pairs)
        source = [options.tree.spec if options.tree else "", *(patch.name for patch in options.patches)]
        source += [str(options.build.folder)] if options.build else []
        call = suite_file.stem, " ".join(source), chosen.only, targets
        part = RunPart(share, divided.night or night_of(history, *call, resume=divided.resume))
        beside = base_of(replace(options, beside_base=True))
        told = telling(options, beside) if beside is not None else None
        likely = Likely()  # the cases most likely to show a change; none for a release
        if beside is not None and told is not None:
            places = {name: place for place, name in enumerate(told.reaching)}
            likely = Likely(places, told.kernels, beside.options.tree)
        runner = SuiteRunner(
            history,
            session,
            suite_file.stem,
            lambda words, status: activity.note(words, regressing.STYLES[status]),
            divided.workers,
            part,
            cluster,
            chosen.only,
            exit_first,
            chosen.fresh or suite.fresh or bool(accept),
            likely,
            standing,
        )
        activity.shows = lambda: str(standing) if standing.cases else activity.words
        found = run_suite(pairs, suite_file.parent, runner, given)
        if not divided.night:
            finish(history, part.night)
        if accept:
            found = [accepted(history, outcome, accept, share) for outcome in found]
        if base is not None and not any(outcome.stopped == "interrupted" for outcome in found):
            found = list(base.compared(found, pairs, suite_file.parent, runner, given))
    ci.write(found, base.places() if base else "")
    show(regressing.as_json(found) if as_json else None, lambda: regressing.render(found), as_json)
    if first := [outcome for outcome in found if outcome.stopped == "at the first failure"]:
        left = number_of(sum(outcome.counts["not run"] for outcome in first), "case")
        NOTES.print(f"stopped at the first failure: {left} not run; --resume continues with the rest")
    took = sum(outcome.seconds for outcome in found)
    if 0 < suite.seconds < took:
        said = f"the cases took {took:.0f} s; the suite may take {suite.seconds:.0f} s on two cores"
        NOTES.print(said, style="yellow")
    for said in told.left_out(pairs, suite_file.parent) if told else ():
        NOTES.print(f"{said}; `fattn-probe compare` without a scenario looks for one in all suites", style="yellow")
    if words := next(filter(None, (repeating(outcome, build, where) for outcome in found)), None):
        NOTES.print(f"to repeat a failure: {shlex.join(words)}", soft_wrap=True)
    regressing.raise_if_regressed(found, suite.lost)


def repeating(outcome: Outcome, build: BuildFlags, where: Where) -> list[str] | None:
    """The `compare` command for a run's first failure, known defects aside; None if no command reproduces it."""
    ran, checks = outcome.run.identity.fingerprint, outcome.run.settings.checks
    if ran is None or checks is None or checks.order:
        return None
    failed = [result for result in outcome.results.values() if result.status == "fail" and not result.known]
    for result in failed:
        file = cases_like(Path(result.name)).get(result.name)
        if result.name not in outcome.failing or file is None or one_case(file, "").digest != result.digest:
            continue  # such as upstream's own case, or a case in the user's own suite
        if result.reason.startswith((PASSES_ALONE, FAILED_ONCE)):
            continue  # it depends on all earlier cases of its process
        on = "gpu" if outcome.run.identity.engine == "cuda" else outcome.run.identity.device
        more: dict[str, object] = {"build": build.folder, "check": ran.flavour == "check"}
        more |= {"sanitize": ",".join(ran.sanitize), "quants": "" if build.folder else ",".join(ran.quants)}
        more |= {"repeat": checks.repeat if checks.repeat > 1 else 0, "roundings": checks.roundings}
        more |= {"kernels": checks.kernels, "batch_invariance": bool(checks.batch_invariance)}
        return ["fattn-probe", "compare", result.name, *setup.same_again(build.source, build, where, on=on, **more)]
    return None


def accepted(history: History, outcome: Outcome, why: str, shard: Shard = ALL) -> Outcome:
    """Make a run the baseline of its line, unless this command's shard of the run is unfit."""
    if said := history.unfit(outcome.run, shard):
        NOTES.print(f"not accepted: {said}", style="yellow")
        return outcome
    history.accept(outcome.run, user_name(), why, shard)
    return replace(outcome, accepted=why)


def diff(
    a: Annotated[str, typer.Argument(metavar="OLD", help="The llama.cpp to compare with.")],
    b: Annotated[str, typer.Argument(metavar="NEW", help="The llama.cpp in which a failure is a regression.")],
    paths: flags.Scenarios,
    where: Annotated[Where, offered(on=SIMULATED)],
    as_json: flags.Json = False,
) -> None:
    """Compare an old and a new llama.cpp on the same inputs: kernel, launch, bits, error."""
    cases = cases_of(paths)
    targets = parse_targets(where.on, load_devices(where.devices))
    with Activity(NOTES) as activity:
        session_of = sessions(where, activity)

        def on_result(result: Result, done: int, planned: int) -> None:
            activity.step(short(result.name))
            activity.count(result.status, done, planned)

        for source in (a, b):
            session = session_of(source)
            activity.step("finding the kernels that the cases need")
            prepare(session, [(case, targets) for case in cases])
        found = [versions.diff(session_of, (a, b), cases, target, on_result) for target in targets]
    show(regressing.versions_json(found), lambda: regressing.render_versions(found), as_json)
    alarms = [f"{change.case}: {change.words}" for item in found for change in item.changes if change.alarm]
    if alarms:
        raise RegressionError("\n".join(alarms))


def bisect(
    good: Annotated[str, typer.Argument(help="A release that passes: pypi:NAME==VERSION.")],
    bad: Annotated[str, typer.Argument(help="A later release that fails.")],
    path: flags.OneScenario,
    *,
    where: Annotated[Where, offered(on=SIMULATED)],
    case_name: flags.CaseName = "",
    as_json: flags.Json = False,
) -> None:
    """Find the first llama.cpp release that fails a case, and show how it fails."""
    (target, *more) = parse_targets(where.on, load_devices(where.devices))
    if more:
        raise InputError("bisect runs on one target")
    if not good.startswith("pypi:"):
        raise InputError(f"bisect needs releases, pypi:NAME==VERSION; {good!r} is not one")
    from fattn_probe.llama.source.index import releases  # imports HTTP, for bisect only

    name = good.removeprefix("pypi:").partition("==")[0]
    sources = versions.between([f"pypi:{name}=={version}" for version in releases(name)], good, bad)
    NOTES.print(f"{len(sources)} releases; bisect runs about {versions.runs_of(len(sources))} of them", style="dim")
    case = one_case(path, case_name)
    with Activity(NOTES) as activity:
        found = versions.bisect(sessions(where, activity), sources, case, target, activity.step)
    show(regressing.bisection_json(found), lambda: regressing.render_bisection(found), as_json)


def sessions(where: Where, activity: Activity) -> versions.SessionOf:
    """One session per source, created on first use."""

    @functools.cache
    def session_of(source: str) -> Session:
        activity.step("")  # a download shows its own progress line
        return setup.session_of(setup.run_options(BuildFlags(source), where), activity)

    return session_of
