"""The command line of `regress`, `diff` and `bisect`."""

import functools
import getpass
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import platformdirs
import typer

from fattn_probe import flags, setup
from fattn_probe.activity import Activity
from fattn_probe.compare.judge.checks import UseModel, sample_of
from fattn_probe.console import NOTES, show
from fattn_probe.device import load_devices, parse_targets
from fattn_probe.errors import InputError, RegressionError
from fattn_probe.files import write_text, writing
from fattn_probe.ops.render import short
from fattn_probe.regress import tables as regressing
from fattn_probe.regress import versions
from fattn_probe.regress.cluster import Cluster
from fattn_probe.regress.entries import Given, entries_on_targets, run_suite
from fattn_probe.regress.history import History, open_history
from fattn_probe.regress.junit import junit
from fattn_probe.regress.records import Part, Result, parse_shard
from fattn_probe.regress.results import OnResult
from fattn_probe.regress.runner import Outcome, SuiteRunner
from fattn_probe.regress.suite import Suite, load_suite
from fattn_probe.run.prepare import prepare
from fattn_probe.run.session import Session
from fattn_probe.run.simulator import Simulation
from fattn_probe.scenario.files import cases_of, one_case

DEFAULT_HISTORY = Path(platformdirs.user_data_dir("fattn-probe")) / "history.db"
DEFAULT_SUITE = Path("quick")
HistoryFile = Annotated[Path, typer.Option("--history", help="The SQLite database of all runs.")]
Markdown = Annotated[
    Path | None, typer.Option("--markdown", dir_okay=False, help="Append a summary to this file, for a CI job.")
]
JunitFile = Annotated[Path | None, typer.Option("--junit", dir_okay=False, help="Write JUnit XML to this file.")]


def regress(
    suite_file: flags.SuiteFile = DEFAULT_SUITE,
    on: flags.On = "",
    source: Annotated[str, typer.Option("--source", help="The llama.cpp to run, instead of the suite's.")] = "",
    patch: flags.Patches = [],  # noqa: B006
    folder: flags.BuildFolder = None,
    history_file: HistoryFile = DEFAULT_HISTORY,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the last run that did not finish.")] = False,
    accept: Annotated[str, typer.Option(help="Make this run the baseline; say why.", metavar="WHY")] = "",
    only: Annotated[str, typer.Option("--filter", help="Only cases whose name matches this regular expression.")] = "",
    model: Annotated[UseModel | None, typer.Option(help="The rounding model, instead of the suite's `check`.")] = None,
    sample: Annotated[
        str, typer.Option(help="Rows to check exactly, instead of the suite's.", metavar="N|all|auto")
    ] = "",
    workers: Annotated[
        int | None, typer.Option(min=1, max=flags.MOST_THREADS, help="Number of processes; default: all cores.")
    ] = None,
    markdown: Markdown = None,
    junit_file: JunitFile = None,
    shard: Annotated[
        str, typer.Option(help="Run only the K-th of N parts, such as 2/8; needs --run.", metavar="K/N")
    ] = "",
    night: Annotated[str, typer.Option("--run", help="Run name, shared by all shards.")] = "",
    dask: Annotated[str, typer.Option(help="Run on a dask cluster, such as tcp://node1:8786.", metavar="ADDRESS")] = "",
    timeout: flags.Timeout = 600.0,
    devices: flags.Devices = None,
    as_json: flags.Json = False,
) -> None:
    """Run a suite, and report what changed since the last accepted run."""
    suite = load_suite(suite_file)
    given = Given(on, only, model, sample_of(sample) if sample else None, devices)
    pairs = list(entries_on_targets(suite, suite_file.parent, given))
    cluster = Cluster(dask) if dask else None
    part = Part(parse_shard(shard), night) if shard else Part(night=night)
    if shard and not night:
        raise InputError("--shard needs --run NAME; all shards of a run use the same name")
    chosen = setup.BuildFlags(source or suite.source, patch, folder=folder)
    options = chosen.run_options(NOTES, Simulation(), timeout=timeout)
    with (
        open_history(history_file) as history,
        Activity(NOTES, words=f"finding the cases of {suite_file.stem} and their kernels") as activity,
    ):
        session, on_result = setup.session_of(options, activity), results_to(activity)
        runner = SuiteRunner(history, session, suite_file.stem, resume, on_result, workers, part, cluster, only=only)
        found = list(run_suite(pairs, suite_file.parent, runner, given))
        if accept:
            found = [accepted(history, outcome, accept) for outcome in found]
    write_for_ci(found, markdown, junit_file)
    show(regressing.as_json(found), lambda: regressing.render(found), as_json)
    note_time(suite, found)
    regressing.raise_if_regressed(found, suite.lost)


def accepted(history: History, outcome: Outcome, why: str) -> Outcome:
    """Make a run the baseline of its line, unless it was interrupted."""
    if outcome.interrupted:
        return outcome
    history.accept(outcome.run, getpass.getuser(), why)
    return replace(outcome, accepted=why)


def write_for_ci(found: Sequence[Outcome], markdown: Path | None, junit_file: Path | None) -> None:
    """Write the summary and the JUnit file for a CI job."""
    if junit_file is not None:
        write_text(junit_file, junit(found))
    if markdown is not None:
        with writing(markdown), markdown.open("a", encoding="utf-8") as file:
            file.write(regressing.markdown(found))


def note_time(suite: Suite, found: Sequence[Outcome]) -> None:
    """Say so if a run took longer than its suite may."""
    took = sum(outcome.seconds for outcome in found)
    if 0 < suite.seconds < took:
        said = f"the cases took {took:.0f} s; the suite may take {suite.seconds:.0f} s on two cores"
        NOTES.print(said, style="yellow")


def diff(
    a: Annotated[str, typer.Argument(metavar="SOURCE_A")],
    b: Annotated[str, typer.Argument(metavar="SOURCE_B")],
    paths: flags.Scenarios,
    on: flags.On = "sim:h200",
    timeout: flags.Timeout = 600.0,
    devices: flags.Devices = None,
    as_json: flags.Json = False,
) -> None:
    """Compare two llama.cpp versions on the same inputs: kernel, launch, bits, error."""
    cases = cases_of(paths)
    targets = parse_targets(on, load_devices(devices))
    with Activity(NOTES) as activity:
        session_of, on_result = sessions(timeout, activity), results_to(activity)
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
    on: flags.On = "sim:h200",
    case_name: Annotated[str, typer.Option("--case", help="The case to run, if the scenario has several.")] = "",
    timeout: flags.Timeout = 600.0,
    devices: flags.Devices = None,
    as_json: flags.Json = False,
) -> None:
    """Find the first llama.cpp release that fails a case, and how it fails."""
    (target, *more) = parse_targets(on, load_devices(devices))
    if more:
        raise InputError("bisect runs on one target")
    sources = versions.between(all_releases(good), good, bad)
    NOTES.print(f"{len(sources)} releases; bisect runs about {len(sources).bit_length() + 1} of them", style="dim")
    case = one_case(path, case_name)
    with Activity(NOTES) as activity:
        found = versions.bisect(sessions(timeout, activity), sources, case, target, activity.step)
    show(regressing.bisection_json(found), lambda: regressing.render_bisection(found), as_json)


def all_releases(spec: str) -> list[str]:
    """Every release of a spec's project, oldest first."""
    from fattn_probe.source.index import releases  # HTTP, for bisect only

    name = spec.removeprefix("pypi:").partition("==")[0]
    if not spec.startswith("pypi:"):
        raise InputError(f"bisect needs releases, pypi:NAME==VERSION; {spec!r} is not one")
    return [f"pypi:{name}=={version}" for version in releases(name)]


def sessions(timeout: float, activity: Activity) -> versions.SessionOf:
    """One session per source, created on first use."""

    @functools.cache
    def session_of(source: str) -> Session:
        activity.step("")  # a download has a line of its own
        options = setup.BuildFlags(source).run_options(NOTES, Simulation(), timeout=timeout)
        return setup.session_of(options, activity)

    return session_of


def results_to(activity: Activity) -> OnResult:
    """Counts results, and names the last one."""

    def on_result(result: Result, done: int, planned: int) -> None:
        activity.step(short(result.name))
        activity.count(result.status, done, planned)

    return on_result
