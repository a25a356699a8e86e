"""The command line of `history`."""

import contextlib
import csv
import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe.base.console import DOCUMENTS, NOTES, show
from fattn_probe.base.errors import InputError, LostError
from fattn_probe.base.figures import number_of
from fattn_probe.base.files import write_text
from fattn_probe.base.host import user_name
from fattn_probe.cli import flags
from fattn_probe.cli.regress import DEFAULT_HISTORY, ForCI, HistoryFile
from fattn_probe.daily.regress import tables as regressing
from fattn_probe.daily.regress.history import History, open_history
from fattn_probe.daily.regress.night import night_of
from fattn_probe.daily.regress.records import Run
from fattn_probe.daily.regress.resume import unlike_parts
from fattn_probe.daily.regress.runner import outcome_of
from fattn_probe.llama.launch.record import in_words

COLUMNS = (
    *("run", "started", "suite", "device", "source"),
    *("case", "digest", "status", "nmse", "seconds", "output", "launches", "reason"),
)
RunName = Annotated[str, typer.Argument(help="The beginning of a run's name.")]
OfSuite = Annotated[str, typer.Option(help="Only runs of this suite.")]
history_app = typer.Typer(
    help="Results of all regression runs: list, accept, export, report, merge.", no_args_is_help=True
)


@history_app.command("list")
def history_list(history_file: HistoryFile = DEFAULT_HISTORY, as_json: flags.Json = False) -> None:
    """List all runs."""
    with open_existing(history_file) as history:
        counts = history.counts()
        rows = [(run, counts.get(run.id, {})) for run in history.runs()]
    document = [regressing.run_json(run) | {"counts": found} for run, found in rows]
    show(document, lambda: regressing.render_runs(rows), as_json)


@history_app.command("show")
def history_show(uid: RunName, history_file: HistoryFile = DEFAULT_HISTORY, as_json: flags.Json = False) -> None:
    """Show one run's results."""
    with open_existing(history_file) as history:
        results = list(history.results(history.run(uid)).values())
    show([regressing.result_json(result) for result in results], lambda: regressing.render_results(results), as_json)


@history_app.command("accept")
def history_accept(
    why: Annotated[str, typer.Option(help="The reason, for the record.")],
    uid: RunName = "",
    last: Annotated[bool, typer.Option("--last", help="Accept the last run of each line, if it has finished.")] = False,
    history_file: HistoryFile = DEFAULT_HISTORY,
) -> None:
    """Make a run the baseline for later runs of its line."""
    if last == bool(uid):
        raise InputError("name one run, or use --last")
    if not why.strip():
        raise InputError("--why is empty: say why this run is correct")
    with open_existing(history_file, reading=False) as history:
        runs = history.last_runs() if last else [history.run(uid)]
        fit = [run for run in runs if not history.unfit(run)]
        for run in fit or runs[:1]:  # `accept` refuses an unfit run
            history.accept(run, user_name(), why)
            NOTES.print(f"accepted {run.uid[:8]} ({run.identity.device}, {run.suite})")
        if left := len(runs) - len(fit):
            NOTES.print(f"skipped {number_of(left, 'run')} that did not finish or have no cases", style="yellow")


@history_app.command("export")
def history_export(history_file: HistoryFile = DEFAULT_HISTORY, as_json: flags.Json = False) -> None:
    """Print all results as CSV, or with --json as one JSON document per line, with metrics, launches and times."""
    with open_existing(history_file) as history:
        rows = ((run, item) for run in history.runs() for item in history.results(run).values())
        if as_json:
            for run, item in rows:
                DOCUMENTS.write(json.dumps(_where(run) | regressing.result_json(item)) + "\n")
            return
        table = csv.writer(DOCUMENTS, lineterminator="\n")
        table.writerow(COLUMNS)
        for run, item in rows:
            found = (item.digest, item.status, item.metrics.get("nmse"), item.time, item.output)
            table.writerow((*_where(run).values(), item.name, *found, in_words(item.kernels), item.reason))


def _where(run: Run) -> dict[str, str]:
    identity = {"device": run.identity.device, "source": run.identity.source}
    return {"run": run.uid, "started": run.started, "suite": run.suite, **identity}


@history_app.command("report")
def history_report(
    page: Annotated[Path, typer.Argument(dir_okay=False, help="The HTML file to write.")],
    suite: OfSuite = "",
    history_file: HistoryFile = DEFAULT_HISTORY,
) -> None:
    """Write one self-contained HTML page: what changed, and the history of each case."""
    from fattn_probe.daily.regress.report import report  # imports jinja2 and the plotting code, for this command only

    with open_existing(history_file) as history:
        if suite:
            history.last_runs(suite)
        write_text(page, report(history, suite))
    NOTES.print(f"wrote {page}")


@history_app.command("judge")
def history_judge(
    uid: Annotated[str, typer.Argument(help="The beginning of a run's name; default: the last run of each line.")] = "",
    suite: OfSuite = "",
    *,
    ci: ForCI,
    most_lost: Annotated[
        float,
        typer.Option("--lost", callback=flags.share, help="Share of cases that may be lost without exit code 4."),
    ] = 0.02,
    history_file: HistoryFile = DEFAULT_HISTORY,
    as_json: flags.Json = False,
) -> None:
    """Compare one run, or the last run of each line, with its baseline, as `regress` does; for use after a merge."""
    if uid and suite:
        raise InputError("name one run, or a suite")
    with open_existing(history_file) as history:
        runs = [history.run(uid)] if uid else history.last_runs(suite)
        seen = [night_of(history, run) for run in runs]
        gone = [(night, unlike_parts(history, night.run)) for night in seen if night.unfinished]
    found = [outcome_of(night) for night in seen]
    ci.write(found)
    show(regressing.as_json(found), lambda: regressing.render(found), as_json)
    if gone:
        night, words = gone[0]
        said = f"{night.run.identity.device}: {', '.join(night.unfinished)} did not finish"
        raise LostError(f"{said}; another part of this run differs in {words}" if words else said)
    regressing.raise_if_regressed(found, most_lost)


@history_app.command("merge")
def history_merge(others: list[Path], history_file: HistoryFile = DEFAULT_HISTORY) -> None:
    """Copy the results of other histories, from other machines or shards, into this one; idempotent."""
    with open_history(history_file) as history:
        for path in others:
            with open_existing(path) as theirs:
                runs, results = history.merge(theirs)
            NOTES.print(f"{path}: {runs} new runs, {results} new results")


@history_app.command("prune")
def history_prune(
    before: Annotated[str, typer.Argument(help="A date such as 2026-01-31.")],
    history_file: HistoryFile = DEFAULT_HISTORY,
) -> None:
    """Delete runs before a date, except accepted ones."""
    try:
        day = date.fromisoformat(before).isoformat()
    except ValueError as error:
        raise InputError(f"{before!r} is not a date; allowed: YYYY-MM-DD, such as 2026-01-31") from error
    with open_existing(history_file, reading=False) as history:
        NOTES.print(f"deleted {history.prune(day)} runs")


@contextlib.contextmanager
def open_existing(path: Path, *, reading: bool = True) -> Iterator[History]:
    """Open an existing history; with `reading`, read-only."""
    if not path.exists():
        raise InputError(f"there is no history {path}; `fattn-probe regress` creates one")
    with open_history(path, reading=reading) as history:
        yield history
