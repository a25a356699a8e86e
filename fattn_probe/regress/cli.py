"""The command line of `regress` and `history`."""

import contextlib
import csv
import getpass
import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import platformdirs
import typer
from rich.progress import Progress

from fattn_probe import flags
from fattn_probe.console import NOTES, OUT, show
from fattn_probe.device import load_devices, parse_targets
from fattn_probe.errors import InputError
from fattn_probe.regress import command as regressing
from fattn_probe.regress.history import History, open_history
from fattn_probe.regress.records import Result, Run
from fattn_probe.regress.report import report
from fattn_probe.regress.runner import OnResult, SuiteRunner, outcomes
from fattn_probe.regress.suite import cases_of, load_suite
from fattn_probe.run.session import Session
from fattn_probe.run.simulator import Simulation

DEFAULT_HISTORY = Path(platformdirs.user_data_dir("fattn-probe")) / "history.db"
DEFAULT_SUITE = Path("suites/quick.yaml")
COLUMNS = (
    *("run", "started", "suite", "device", "source"),
    *("case", "digest", "status", "nmse", "output", "reason"),
)
HistoryFile = Annotated[Path, typer.Option("--history", help="The database of all runs.")]
history_app = typer.Typer(help="The results of all regression runs.", no_args_is_help=True)


def regress(
    suite_file: Annotated[Path, typer.Argument(metavar="SUITE")] = DEFAULT_SUITE,
    on: flags.On = "",
    source: Annotated[str, typer.Option("--source", help="Another llama.cpp than the suite's.")] = "",
    patch: flags.Patches = [],  # noqa: B006
    folder: flags.BuildFolder = None,
    history_file: HistoryFile = DEFAULT_HISTORY,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the last run that did not end.")] = False,
    accept: Annotated[str, typer.Option(help="Make this run the baseline; say why.", metavar="WHY")] = "",
    markdown: Annotated[Path | None, typer.Option(help="Append a summary to this file, for a CI job.")] = None,
    timeout: flags.Timeout = 600.0,
    devices: flags.Devices = None,
    as_json: flags.Json = False,
) -> None:
    """Run a suite, and say what changed since the last run that was accepted."""
    suite = load_suite(suite_file)
    cases = cases_of(suite, suite_file.parent)
    targets = parse_targets(on or ",".join(suite.on), load_devices(devices))
    chosen = flags.BuildFlags(source or suite.source, patch, folder=folder)
    options = chosen.run_options(NOTES, Simulation(), repeat=suite.repeat, timeout=timeout)
    session = Session(options, flags.build_progress(NOTES))
    with open_history(history_file) as history, results_bar() as on_result:
        runner = SuiteRunner(history, session, suite_file.stem, resume, on_result)
        found = list(outcomes(runner, cases, targets))
        if accept:
            for outcome in found:
                history.accept(outcome.run, getpass.getuser(), accept)
    if markdown is not None:
        with markdown.open("a", encoding="utf-8") as file:
            file.write(regressing.markdown(found))
    show(regressing.as_json(found), lambda: regressing.render(found), as_json)
    regressing.raise_if_regressed(found, suite.lost)


@contextlib.contextmanager
def results_bar() -> Iterator[OnResult]:
    """A bar that counts results; elsewhere than on a terminal, nothing."""
    counts: Counter[str] = Counter()
    with Progress(console=NOTES, transient=True, disable=not NOTES.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def on_result(result: Result, done: int, planned: int) -> None:
            counts[result.status] += 1
            said = ", ".join(f"{count} {status}" for status, count in counts.items())
            bar.update(task, description=f"{said} ({result.name})", completed=done, total=planned)

        yield on_result


@history_app.command("list")
def history_list(history_file: HistoryFile = DEFAULT_HISTORY, as_json: flags.Json = False) -> None:
    """All runs."""
    with open_existing(history_file) as history:
        rows = [(run, dict(Counter(item.status for item in history.results(run).values()))) for run in history.runs()]
    document = [vars(run) | {"identity": vars(run.identity), "counts": counts} for run, counts in rows]
    show(document, lambda: regressing.render_runs(rows), as_json)


@history_app.command("show")
def history_show(
    uid: Annotated[str, typer.Argument(help="The beginning of a run's name.")],
    history_file: HistoryFile = DEFAULT_HISTORY,
    as_json: flags.Json = False,
) -> None:
    """One run's results."""
    with open_existing(history_file) as history:
        results = list(history.results(history.run(uid)).values())
    show([regressing.result_json(result) for result in results], lambda: regressing.render_results(results), as_json)


@history_app.command("accept")
def history_accept(
    uid: str,
    why: Annotated[str, typer.Option(help="What was looked at.")],
    history_file: HistoryFile = DEFAULT_HISTORY,
) -> None:
    """Make a run what later ones of its line are compared with."""
    with open_existing(history_file) as history:
        history.accept(history.run(uid), getpass.getuser(), why)


@history_app.command("export")
def history_export(history_file: HistoryFile = DEFAULT_HISTORY) -> None:
    """All results as CSV, on stdout."""
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(
        ("run", "started", "suite", "device", "source", "case", "digest", "status", "nmse", "output", "reason")
    )
    with open_existing(history_file) as history:
        for run in history.runs():
            rows.writerows(_csv_rows(run, history))
    OUT.file.write(text.getvalue())


def _csv_rows(run: Run, history: History) -> Iterator[tuple[object, ...]]:
    head = (run.uid, run.started, run.suite, run.identity.device, run.identity.source)
    for item in history.results(run).values():
        yield (*head, item.name, item.digest, item.status, item.metrics.get("nmse"), item.output, item.reason)


@history_app.command("report")
def history_report(
    page: Annotated[Path, typer.Argument(help="The HTML file to write.")],
    suite: Annotated[str, typer.Option(help="Runs of this suite alone.")] = "",
    history_file: HistoryFile = DEFAULT_HISTORY,
) -> None:
    """One self-contained page: what changed, and each case through the nights."""
    with open_existing(history_file) as history:
        page.write_text(report(history, suite), encoding="utf-8")
    NOTES.print(f"wrote {page}")


@history_app.command("merge")
def history_merge(other: Path, history_file: HistoryFile = DEFAULT_HISTORY) -> None:
    """Take over the runs of another machine's history; twice is as good as once."""
    with open_existing(other) as theirs, open_history(history_file) as history:
        NOTES.print(f"{history.merge(theirs)} new runs")


@history_app.command("prune")
def history_prune(
    before: Annotated[str, typer.Argument(help="A date such as 2026-01-31.")],
    history_file: HistoryFile = DEFAULT_HISTORY,
) -> None:
    """Forget older runs, but not those that were accepted."""
    with open_existing(history_file) as history:
        NOTES.print(f"{history.prune(before)} runs forgotten")


@contextlib.contextmanager
def open_existing(path: Path) -> Iterator[History]:
    """A history that is there."""
    if not path.is_file():
        raise InputError(f"there is no history {path}; `fattn-probe regress` makes one")
    with open_history(path) as history:
        yield history
