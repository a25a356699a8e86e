"""Continue the last unfinished `regress` command, and keep its results that are still valid."""

import json
import uuid
from collections.abc import Mapping

from fattn_probe.base.figures import minute, number_of
from fattn_probe.base.process import log
from fattn_probe.daily.regress.history import History, now
from fattn_probe.daily.regress.records import Result, Run
from fattn_probe.daily.regress.schema import transaction, translated


def night_of(history: History, suite: str, source: str, only: str, targets: frozenset[str], *, resume: bool) -> str:
    """The name of a command's night: a new one, or with `resume` that of the last command that did not finish.

    That command must have the same suite, source and filter, and share a target (compared by name). `source` names the
    source, its patches and the user's build, if any; `targets` are those of all entries.
    """
    query = "SELECT night, targets FROM calls WHERE suite = ? AND source = ? AND only = ? AND ended IS NULL"
    with translated(history.path), transaction(history.connection):
        if resume:
            rows = history.connection.execute(f"{query} ORDER BY started", (suite, source, only)).fetchall()
            found = [str(row["night"]) for row in rows if not targets.isdisjoint(json.loads(row["targets"]))]
            if found:
                return found[-1]
        night = uuid.uuid4().hex
        about = (night, suite, source, only, json.dumps(sorted(targets)), now())
        history.connection.execute("INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, NULL)", about)
    return night


def finish(history: History, night: str) -> None:
    """Mark a command as finished, unless one of its runs is unfinished and was not replaced by a later one."""
    last = {(run.identity.line, run.suite): run for run in history.runs() if run.night == night}
    if all(run.ended for run in last.values()):
        with translated(history.path), transaction(history.connection):
            history.connection.execute("UPDATE calls SET ended = ? WHERE night = ?", (now(), night))


def take_over(history: History, run: Run, fingerprints: Mapping[str, str]) -> set[str]:
    """The cases that need not run, because this night already has results with the same fingerprints.

    If something changed, a new run was begun. The usable results of the night's earlier runs are copied to it, and the
    unusable ones are reported. A lost case runs again.
    """
    found = usable(history.results(run), fingerprints)
    if found or not run.night:
        return found
    for earlier in reversed(history.runs(run.identity.line, run.suite)):
        if earlier.night != run.night or earlier.id == run.id or earlier.settings.only != run.settings.only:
            continue
        results, differences = history.results(earlier), differences_of(run, earlier)
        fresh = set() if differences else usable(results, fingerprints) - found
        history.carry(earlier, run, fresh)
        found |= fresh
        unused = [results[name] for name in fingerprints.keys() & results.keys() - found]
        if changed := [result for result in unused if result.status != "lost"]:
            why = f"{' and '.join(differences)} changed" if differences else "the cases themselves changed"
            said = number_of(len(changed), "case")
            when = minute(earlier.started)
            log.warning("%s: rerunning %s of the run from %s, since %s", earlier.suite, said, when, why)
    return found


def unlike_parts(history: History, run: Run) -> str:
    """Describe how a run differs from the other runs of its night, line and suite."""
    runs = (
        one for one in history.runs(run.identity.line, run.suite) if one.night == run.night != "" and one.id != run.id
    )
    words = dict.fromkeys(word for one in runs for word in differences_of(run, one) or ("the cases",))
    return " and ".join(words)


def differences_of(run: Run, earlier: Run) -> tuple[str, ...]:
    """The differences between two runs apart from their cases, in words."""
    fingerprint = run.identity.fingerprint
    return fingerprint.differences(earlier.identity.fingerprint) if fingerprint else ()


def usable(results: Mapping[str, Result], fingerprints: Mapping[str, str]) -> set[str]:
    """The names of the cases that have a verdict with the expected fingerprint."""
    ended = {name: result for name, result in results.items() if result.status != "lost"}
    return {name for name, result in ended.items() if result.fingerprint == fingerprints.get(name, "none")}
