"""The command line of `regress` and `history`."""

import contextlib
import csv
import functools
import getpass
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Annotated

import platformdirs
import typer

from fattn_probe import flags
from fattn_probe.activity import Activity
from fattn_probe.compare.judge.checks import UseModel, sample_of
from fattn_probe.console import NOTES, OUT, show
from fattn_probe.device import load_devices, parse_targets
from fattn_probe.errors import InputError, LostError, RegressionError
from fattn_probe.files import write_text, writing
from fattn_probe.ops.render import short
from fattn_probe.regress import tables as regressing
from fattn_probe.regress import versions
from fattn_probe.regress.cluster import Cluster
from fattn_probe.regress.history import History, open_history
from fattn_probe.regress.junit import junit
from fattn_probe.regress.night import nights
from fattn_probe.regress.records import Part, Result, Run, parse_shard
from fattn_probe.regress.report import report
from fattn_probe.regress.results import OnResult
from fattn_probe.regress.runner import Outcome, SuiteRunner, outcome_of, outcomes
from fattn_probe.regress.selection import select
from fattn_probe.regress.suite import load_suite
from fattn_probe.run.gpu import has_gpu
from fattn_probe.run.prepare import prepare
from fattn_probe.run.session import Session
from fattn_probe.run.simulator import Simulation
from fattn_probe.source.index import releases

DEFAULT_HISTORY = Path(platformdirs.user_data_dir("fattn-probe")) / "history.db"
DEFAULT_SUITE = Path("quick")
COLUMNS = (
    *("run", "started", "suite", "device", "source"),
    *("case", "digest", "status", "nmse", "seconds", "output", "reason"),
)
HistoryFile = Annotated[Path, typer.Option("--history", help="The SQLite database of all runs.")]
Markdown = Annotated[
    Path | None, typer.Option("--markdown", dir_okay=False, help="Append a summary to this file, for a CI job.")
]
JunitFile = Annotated[Path | None, typer.Option("--junit", dir_okay=False, help="Write JUnit XML to this file.")]
history_app = typer.Typer(
    help="Results of all regression runs: list, accept, export, report, merge.", no_args_is_help=True
)


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
    targets = parse_targets(on or ",".join(there(suite.on)), load_devices(devices))
    cluster = Cluster(dask) if dask else None
    part = Part(parse_shard(shard), night) if shard else Part(night=night)
    if shard and not night:
        raise InputError("--shard needs --run NAME; all shards of a run use the same name")
    checks = suite.check.checks
    checks = replace(checks, model=model or checks.model, sample=sample_of(sample) if sample else checks.sample)
    chosen = flags.BuildFlags(source or suite.source, patch, folder=folder)
    options = chosen.run_options(NOTES, Simulation(), repeat=suite.repeat, timeout=timeout)
    with (
        open_history(history_file) as history,
        Activity(NOTES, words=f"finding the cases of {suite_file.stem} and their kernels") as activity,
    ):
        session, on_result = flags.session_of(options, activity), results_to(activity)
        runner = SuiteRunner(history, session, suite_file.stem, resume, on_result, workers, part, cluster, checks, only)
        chosen_of = functools.partial(select, suite, suite_file.parent, session, only=only, shard=part.shard)
        found = list(outcomes(runner, chosen_of, targets))
        if accept:
            found = [accepted(history, outcome, accept) for outcome in found]
    write_for_ci(found, markdown, junit_file)
    show(regressing.as_json(found), lambda: regressing.render(found), as_json)
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


def there(words: Sequence[str]) -> list[str]:
    """A suite's devices; skips an optional one (`gpu?`), with a note, if this machine has no GPU."""
    found = [word.removesuffix("?") for word in words if not word.endswith("?") or has_gpu()]
    for word in words:
        if word.removesuffix("?") not in found:
            NOTES.print(f"this machine has no NVIDIA GPU: skipping {word.removesuffix('?')}", style="dim")
    return found


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
    cases = flags.cases_of(paths)
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
    case = flags.one_case(path, case_name)
    with Activity(NOTES) as activity:
        found = versions.bisect(sessions(timeout, activity), sources, case, target, activity.step)
    show(regressing.bisection_json(found), lambda: regressing.render_bisection(found), as_json)


def all_releases(spec: str) -> list[str]:
    """Every release of a spec's project, oldest first."""
    name = spec.removeprefix("pypi:").partition("==")[0]
    if not spec.startswith("pypi:"):
        raise InputError(f"bisect needs releases, pypi:NAME==VERSION; {spec!r} is not one")
    return [f"pypi:{name}=={version}" for version in releases(name)]


def sessions(timeout: float, activity: Activity) -> versions.SessionOf:
    """One session per source, created on first use."""

    @functools.cache
    def session_of(source: str) -> Session:
        activity.step("")  # a download has a line of its own
        options = flags.BuildFlags(source).run_options(NOTES, Simulation(), timeout=timeout)
        return flags.session_of(options, activity)

    return session_of


def results_to(activity: Activity) -> OnResult:
    """Counts results, and names the last one."""

    def on_result(result: Result, done: int, planned: int) -> None:
        activity.step(short(result.name))
        activity.count(result.status, done, planned)

    return on_result


@history_app.command("list")
def history_list(history_file: HistoryFile = DEFAULT_HISTORY, as_json: flags.Json = False) -> None:
    """List all runs."""
    with open_existing(history_file) as history:
        counts = history.counts()
        rows = [(run, counts.get(run.id, {})) for run in history.runs()]
    document = [regressing.run_json(run) | {"counts": found} for run, found in rows]
    show(document, lambda: regressing.render_runs(rows), as_json)


@history_app.command("show")
def history_show(
    uid: Annotated[str, typer.Argument(help="The beginning of a run's name.")],
    history_file: HistoryFile = DEFAULT_HISTORY,
    as_json: flags.Json = False,
) -> None:
    """Show one run's results."""
    with open_existing(history_file) as history:
        results = list(history.results(history.run(uid)).values())
    show([regressing.result_json(result) for result in results], lambda: regressing.render_results(results), as_json)


@history_app.command("accept")
def history_accept(
    why: Annotated[str, typer.Option(help="The reason, for the record.")],
    uid: Annotated[str, typer.Argument(help="The beginning of a run's name.")] = "",
    last: Annotated[bool, typer.Option("--last", help="Accept the last run of each line.")] = False,
    history_file: HistoryFile = DEFAULT_HISTORY,
) -> None:
    """Make a run the baseline for later runs of its line."""
    if last == bool(uid):
        raise InputError("name one run, or use --last")
    with open_existing(history_file, reading=False) as history:
        for run in history.last_runs() if last else [history.run(uid)]:
            history.accept(run, getpass.getuser(), why)
            NOTES.print(f"accepted {run.uid[:8]} ({run.identity.device}, {run.suite})")


@history_app.command("export")
def history_export(history_file: HistoryFile = DEFAULT_HISTORY, as_json: flags.Json = False) -> None:
    """Print all results as CSV, or with --json as one JSON document per line, with metrics, launches and times."""
    with open_existing(history_file) as history:
        rows = ((run, item) for run in history.runs() for item in history.results(run).values())
        if as_json:
            for run, item in rows:
                OUT.file.write(json.dumps(_where(run) | regressing.result_json(item)) + "\n")
            return
        table = csv.writer(OUT.file, lineterminator="\n")
        table.writerow(COLUMNS)
        for run, item in rows:
            found = (item.digest, item.status, item.metrics.get("nmse"), item.time, item.output, item.reason)
            table.writerow((*_where(run).values(), item.name, *found))


def _where(run: Run) -> dict[str, str]:
    identity = {"device": run.identity.device, "source": run.identity.source}
    return {"run": run.uid, "started": run.started, "suite": run.suite, **identity}


@history_app.command("report")
def history_report(
    page: Annotated[Path, typer.Argument(dir_okay=False, help="The HTML file to write.")],
    suite: Annotated[str, typer.Option(help="Only runs of this suite.")] = "",
    history_file: HistoryFile = DEFAULT_HISTORY,
) -> None:
    """Write one self-contained HTML page: what changed, and the history of each case."""
    with open_existing(history_file) as history:
        write_text(page, report(history, suite))
    NOTES.print(f"wrote {page}")


@history_app.command("judge")
def history_judge(
    suite: Annotated[str, typer.Option(help="Only runs of this suite.")] = "",
    most_lost: Annotated[
        float, typer.Option("--lost", callback=flags.share, help="Share of cases that may be lost without exit code 4.")
    ] = 0.02,
    markdown: Markdown = None,
    junit_file: JunitFile = None,
    history_file: HistoryFile = DEFAULT_HISTORY,
    as_json: flags.Json = False,
) -> None:
    """Compare the last run of each line with its baseline, as `regress` does; for merged shards."""
    with open_existing(history_file) as history:
        seen = list(nights(history, suite))
    found = [outcome_of(night) for night in seen]
    write_for_ci(found, markdown, junit_file)
    show(regressing.as_json(found), lambda: regressing.render(found), as_json)
    for night in seen:
        if night.missing_shards:
            raise LostError(f"{night.run.identity.device}: shards {', '.join(night.missing_shards)} have not finished")
    regressing.raise_if_regressed(found, most_lost)


@history_app.command("merge")
def history_merge(others: list[Path], history_file: HistoryFile = DEFAULT_HISTORY) -> None:
    """Copy the results of other histories, from other machines or shards, into this one; idempotent."""
    with open_history(history_file) as history:
        for path in others:
            with open_existing(path) as theirs:
                merged = history.merge(theirs)
            NOTES.print(f"{path}: {merged.runs} new runs, {merged.results} new results")


@history_app.command("prune")
def history_prune(
    before: Annotated[str, typer.Argument(help="A date such as 2026-01-31.")],
    history_file: HistoryFile = DEFAULT_HISTORY,
) -> None:
    """Delete runs before a date, except accepted ones."""
    try:
        day = date.fromisoformat(before).isoformat()
    except ValueError as error:
        raise InputError(f"{before!r} is not a date, allowed: YYYY-MM-DD, such as 2026-01-31") from error
    with open_existing(history_file, reading=False) as history:
        NOTES.print(f"deleted {history.prune(day)} runs")


@contextlib.contextmanager
def open_existing(path: Path, *, reading: bool = True) -> Iterator[History]:
    """Open an existing history, read-only if `reading`."""
    if not path.exists():
        raise InputError(f"there is no history {path}; `fattn-probe regress` creates one")
    with open_history(path, reading=reading) as history:
        yield history
