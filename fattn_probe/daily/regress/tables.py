"""The output of `fattn-probe regress` and `history`: text, JSON, Markdown and the exit code."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.errors import ComparisonError, LostError, RegressionError, UnjudgedError
from fattn_probe.base.figures import minute, number_of
from fattn_probe.base.tables import Table
from fattn_probe.daily.regress.changes import Change, ChangeKind
from fattn_probe.daily.regress.records import Result, Run
from fattn_probe.daily.regress.runner import Outcome
from fattn_probe.daily.regress.versions import VERDICTS, Bisection, Versions, ended
from fattn_probe.verdict.judge.known import by_defect

STYLES = {"pass": "green", "fail": "bold red", "unjudged": "bold yellow", "unsupported": "dim", "lost": "magenta"}
SHOWN = 20
FAILURES = frozenset({ChangeKind.NEW_FAILURE, ChangeKind.SUPPORT_LOST, ChangeKind.UNCOMPILED, ChangeKind.UNJUDGED})
"""The kinds of change whose words give the reason why a case does not pass."""
MOST_ROWS = 200  # in a step summary, which GitHub limits to 1 MiB


def render(outcomes: Sequence[Outcome]) -> RenderableType:
    """Show each target's counts and changes, regressions first; leave out targets that a first failure kept idle."""
    ran = [outcome for outcome in outcomes if outcome.results or outcome.stopped != "at the first failure"]
    parts = [part for outcome in ran for part in _render(outcome)]
    new = [outcome.run.place for outcome in ran if outcome.baseline is None and not outcome.accepted]
    if new:
        on = "" if len(new) == len(ran) else f" on {', '.join(new)}"
        parts.append(Text(f"no baseline yet{on}: --accept WHY makes a run the baseline", "yellow"))
    if any(outcome.failing & other_kernels(outcome) for outcome in ran):
        said = "if another kernel is intended (its output is correct), --accept WHY makes the run the baseline"
        parts.append(Text(said, "yellow"))
    return Group(*parts)


def _render(outcome: Outcome) -> Iterable[RenderableType]:
    yield Text(f"{outcome.run.place}, {outcome.run.identity.tree}: {_counted(outcome.counts)}", "bold")
    if outcome.baseline is not None:
        yield Text(f"compared with {_named(outcome.baseline)}: {_said(outcome)}")
    if why := outcome.accepted:
        kind = "new" if outcome.baseline else "first"
        yield Text(f"accepted {outcome.run.uid[:8]} as the {kind} baseline of {outcome.run.place} ({why})", "green")
    if outcome.run.settings.checks:
        yield Text(f"judged with: {outcome.run.settings.checks}", "dim")
    if said := taken_over(outcome):
        yield Text(said, "dim")
    yield from (Text(line, "yellow") for line in not_checked(outcome))
    moved = _moved(outcome)
    if shown := moved[:SHOWN]:
        rows = (
            (change.case, Text(change.kind, "bold red" if change.alarm else ""), _words(change, outcome))
            for change in shown
        )
        columns = ("case", "change", "before and now")
        yield Table(columns, tuple(rows), prose=frozenset(columns[2:]), heading=columns[:2])
        if len(moved) > SHOWN:
            yield Text(f"and {len(moved) - SHOWN} more (--json has all)", "dim")
    yield from (Text(line, "yellow") for line in by_defect(result.known for result in outcome.results.values()))
    listed = {change.case for change in shown}
    lost = [one for one in outcome.results.values() if one.status == "lost" and one.name not in listed]
    for why, number in Counter(one.reason + one.place for one in lost).items():
        yield Text(f"{number_of(number, 'case')} lost: {why}", STYLES["lost"])
    told = {change.case for change in shown if change.kind in FAILURES}
    for result in outcome.results.values():
        if result.status == "fail" and not result.known and result.name not in told:
            yield Text(f"fail {result.name}: {result.explained}{result.place}", "red")
        if result.status == "unjudged" and result.name not in told:
            yield Text(f"unjudged {result.name}: {result.reason}", STYLES["unjudged"])
        if result.warning:
            yield Text(f"accuracy warning {result.name}: {result.warning}", "yellow")


def taken_over(outcome: Outcome) -> str:
    """A sentence with the number of verdicts from earlier runs; empty for 0."""
    number = sum(result.reused for result in outcome.results.values())
    said = f"{number} of {number_of(len(outcome.results), 'case')} reused: no code that they execute has changed"
    return said if number else ""


def not_checked(outcome: Outcome) -> Iterator[str]:
    """Yield, for each reason, a line with the number of cases that could not be checked."""
    checks = outcome.run.settings.checks
    results, found = outcome.results.values(), Counter[str]()
    found.update(f"{check.name}: {check.reason}" for result in results for check in result.checks if not check.made)
    if checks is None or checks.model != "never":
        found.update(result.missing for result in results if result.missing)
    for reason, number in found.items():
        yield f"not checked in {number_of(number, 'case')}: {reason}"


def _words(change: Change, outcome: Outcome) -> str:
    """A change in words, with the location where a kernel was stopped."""
    return change.words + (outcome.results[change.case].place if change.kind in FAILURES else "")


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in counts.items() if count) or "no cases"


def _said(outcome: Outcome) -> str:
    """The numbers of changes and of regressions."""
    found = _moved(outcome)
    return f"{len(found)} changed, {number_of(len(outcome.alarms), 'regression')}" if found else "nothing changed"


def _moved(outcome: Outcome) -> list[Change]:
    """The changes, regressions first, without cases that were not run, which the counts include."""
    found = (change for change in outcome.changes if change.kind is not ChangeKind.NOT_RUN)
    return sorted(found, key=lambda change: not change.alarm)


def _named(run: Run) -> str:
    return f"{run.uid[:8]} of {minute(run.started)} ({run.identity.tree})"


def as_json(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Key `runs`: `uid`, `identity`, `baseline`, `accepted`, `checks`, `filter`, `counts`, `changes`, `results`."""
    return {
        "runs": [
            {
                "uid": outcome.run.uid,
                "identity": asdict(outcome.run.identity),
                "baseline": outcome.baseline.uid if outcome.baseline else None,
                "accepted": outcome.accepted or None,
                **settings_json(outcome.run),
                "counts": outcome.counts,
                "changes": [asdict(change) | {"alarm": change.alarm} for change in outcome.changes],
                "results": [result_json(result) for result in outcome.results.values()],
            }
            for outcome in outcomes
        ]
    }


def run_json(run: Run) -> dict[str, Any]:
    """A run in the history, for JSON, with its settings."""
    return {name: value for name, value in asdict(run).items() if name != "settings"} | settings_json(run)


def settings_json(run: Run) -> dict[str, Any]:
    """A run's settings for JSON: `checks` (as in a suite file) and `filter`; null if unknown or not given."""
    checks = run.settings.checks
    return {"checks": asdict(checks) if checks else None, "filter": run.settings.only or None}


def result_json(result: Result) -> dict[str, Any]:
    """A result for JSON, with its kernels by name and without its error map."""
    fields = {name: value for name, value in asdict(result).items() if name != "error_map"}
    return fields | {"launches": [record.spelling for record in result.kernels]}


def markdown(outcomes: Sequence[Outcome], said: str = "") -> str:
    """Markdown for a CI job's summary: `said`, each target's verdict, then the changes, regressions first."""
    lines = ["# flash attention", *(["", said] if said else [])]
    lines += ["", "| on | source | verdict | results |", "| --- | --- | --- | --- |"] if outcomes else []
    for outcome in outcomes:
        identity = outcome.run.identity
        gone = sum(outcome.counts[status] for status in ("unjudged", "lost", "not run"))
        verdict = _said(outcome)
        if outcome.baseline is None:
            accepted = "the first baseline" if outcome.accepted else "no baseline yet"
            others = len(other_kernels(outcome))
            verdict = f"{outcome.counts['fail'] - others or 'nothing'} wrong{_known(outcome)}, {accepted}"
            verdict += f"; {others} with another kernel" if others else ""
        verdict += f"; {gone} without a verdict" if gone else ""
        verdict += f"; {said}" if (said := taken_over(outcome)) else ""
        cells = (outcome.run.place, f"`{identity.tree}`", f"**{verdict}**", _counted(outcome.counts))
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    for outcome in outcomes:
        found = _moved(outcome)
        told = {change.case for change in found}
        left = [result for result in outcome.results.values() if result.name not in told]
        failed = [result for result in left if result.status == "fail"]
        rows = [
            (change.case, f"**{change.kind}**" if change.alarm else change.kind, _words(change, outcome))
            for change in found
        ]
        rows += [
            (result.name, _failure(result, outcome), result.explained + result.place)
            for result in failed
            if not result.known
        ]
        rows += [(result.name, "lost", result.explained + result.place) for result in left if result.uncompiled]
        defects = [result.known for result in failed if result.known]
        by_id = zip(dict.fromkeys(defects), by_defect(defects), strict=True)
        rows += [(id, "known defect", line) for id, line in by_id]
        if rows:
            beside = f", compared with {_named(outcome.baseline)}" if outcome.baseline else ""
            lines += ["", f"## {outcome.run.place}{beside}", "", "| case | change | |", "| --- | --- | --- |"]
        lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows[:MOST_ROWS]]
        if len(rows) > MOST_ROWS:
            lines += ["", f"and {len(rows) - MOST_ROWS} more"]
    return "\n".join(lines) + "\n"


def _failure(result: Result, outcome: Outcome) -> str:
    """The kind of a failure that is not a change."""
    return "known failure" if outcome.baseline else "another kernel" if result.only_another_kernel else "wrong"


def other_kernels(outcome: Outcome) -> set[str]:
    """The cases that fail only because their kernel is not that of the release."""
    return {name for name, result in outcome.results.items() if result.only_another_kernel}


def _known(outcome: Outcome) -> str:
    """The number of known defects among the failures, in brackets; empty if there is none."""
    number, wrong = known(outcome), outcome.counts["fail"] - len(other_kernels(outcome))
    return f" ({'all' if number == wrong else number} known defects)" if number else ""


def known(outcome: Outcome) -> int:
    """The number of failures that are known defects of llama.cpp."""
    return sum(bool(result.known) for result in outcome.results.values())


def render_versions(found: Sequence[Versions]) -> RenderableType:
    """Show a row per case: its changes, the kernels of the old and the new version, and both errors (NMSE)."""
    parts: list[RenderableType] = []
    columns = ("case", "changed", "old\nkernel", "new\nkernel", "old\nNMSE", "new\nNMSE")
    for item in found:
        rows, kinds = [], defaultdict[str, list[Change]](list)
        for change in item.changes:
            kinds[change.case].append(change)
        for name, result in item.a.items():
            other, changes = item.b[name], kinds[name]
            first, second = result.kernel or result.status, other.kernel or other.status
            # For launches and bits, also show the numbers, which no other column contains.
            numbers = (ChangeKind.LAUNCH, ChangeKind.BITS)
            words = (f"{one.kind}: {one.words}" if one.kind in numbers else one.kind for one in changes)
            said = Text("\n".join(words) or "nothing")
            said.stylize("bold red" if any(change.alarm for change in changes) else "")
            rows.append((name, said, first, "the same" if first == second else second, _nmse(result), _nmse(other)))
        old, new = item.sources
        table = Table(columns, tuple(rows), frozenset(columns[4:]), frozenset({"changed"}), columns[:2])
        parts += [Text(f"{item.on}, old: {old}, new: {new}", "bold"), table]
    return Group(*parts)


def _nmse(result: Result) -> str:
    value = result.metrics.get("nmse")
    return f"{value:.2e}" if value is not None else ""


def versions_json(found: Sequence[Versions]) -> dict[str, Any]:
    """The JSON document, with the key `targets`: `on`, `sources`, `changes`, `a` and `b` (results by case)."""
    return {
        "targets": [
            {
                "on": item.on,
                "sources": list(item.sources),
                "changes": [asdict(change) | {"alarm": change.alarm} for change in item.changes],
                "a": {name: result_json(result) for name, result in item.a.items()},
                "b": {name: result_json(result) for name, result in item.b.items()},
            }
            for item in found
        ]
    }


def render_bisection(found: Bisection) -> RenderableType:
    """Show the sources that were tried, and the first bad one."""
    tried = []
    for source, result in found.tried:
        words = result.status if result.status in VERDICTS else f"skipped, {ended(result)}"
        tried.append(Text(f"{source}: {words}", STYLES.get(result.status, "")))
    first = f"first bad source: {found.bad}"
    if len(found.suspects) > 1:  # all but the last suspect were skipped
        first = f"the first bad source is one of {', '.join(found.suspects)}"
    return Group(*tried, Text(first, "bold"), Text(found.result.failure))


def bisection_json(found: Bisection) -> dict[str, Any]:
    """Keys `bad`, `suspects`, `result`, `tried` (source to status) and `skipped` (source to reason)."""
    tried = {source: result.status for source, result in found.tried}
    skipped = {source: result.reason for source, result in found.tried if result.status not in VERDICTS}
    document = {"bad": found.bad, "suspects": found.suspects, "result": result_json(found.result)}
    return document | {"tried": tried, "skipped": skipped}


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def raise_if_regressed(outcomes: Sequence[Outcome], most_lost: float) -> None:
    """Raise the error with the exit code.

    Exit code 4 if too many cases were lost or, without a baseline, a kernel does not compile; 6 for a regression, 5 for
    a failure, 7 for an output that could not be judged. A failure that the accepted run also has, a known defect of
    llama.cpp, and an output that the accepted run could not judge either are reported without changing the exit code.
    """
    if interrupted := [outcome for outcome in outcomes if outcome.stopped == "interrupted"]:
        place = interrupted[0].run.place if len(interrupted) == 1 else f"{len(interrupted)} runs"
        left = sum(outcome.counts["not run"] for outcome in interrupted)
        raise LostError(f"{place}: stopped with {left} cases left; --resume continues with them")
    for outcome in outcomes:
        if outcome.lost > most_lost:
            raise LostError(f"{outcome.run.place}: {outcome.lost:.0%} of the cases were lost or not run")
    if worse := [outcome for outcome in outcomes if outcome.alarms]:
        said = []
        for item in worse:  # `3 regressions (2 new failure, 1 slower)`; the report on stdout names the cases
            kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(one.kind for one in item.alarms).items())
            said.append(f"{item.run.place}: {number_of(len(item.alarms), 'regression')} ({kinds})")
        raise RegressionError("\n".join(said))
    wrong = [outcome for outcome in outcomes if outcome.baseline is None and outcome.counts["fail"] > known(outcome)]
    if wrong:
        said = []
        for item in wrong:
            others = len(other_kernels(item))
            number = item.counts["fail"] - others
            cases = [f"{'1 case is' if number == 1 else f'{number} cases are'} wrong{_known(item)}"] * bool(number)
            cases += [f"{number_of(others, 'case')} with a correct output of another kernel"] * bool(others)
            said.append(f"{item.run.place}: {', '.join(cases)}; no baseline yet")
        raise ComparisonError("\n".join(said))
    for outcome in outcomes:
        gone = [result for result in outcome.results.values() if result.uncompiled]
        if gone and outcome.baseline is None:
            source = "the source " * gone[0].reason.startswith("does not compile")
            why = f"{number_of(len(gone), 'case')} lost: {source}{gone[0].reason}{gone[0].place}"
            raise LostError(f"{outcome.run.place}: {why}")
    if unjudged := [outcome for outcome in outcomes if outcome.unjudged]:
        said = [f"{item.run.place}: {number_of(len(item.unjudged), 'output')} could not be judged" for item in unjudged]
        raise UnjudgedError("\n".join(said))


def render_runs(rows: Sequence[tuple[Run, dict[str, int]]]) -> RenderableType:
    """Show the runs of a history that have cases, newest last."""
    words, full = [], [row for row in rows if row[1]]
    for run, counts in full:
        state = _counted(counts) + ("" if run.ended else " (did not finish)")
        words.append((run.uid[:8], minute(run.started), run.suite, run.identity.device, run.identity.tree, state))
    columns = ("run", "started", "suite", "on", "source", "results")
    table = Table(columns, tuple(words), prose=frozenset({"results"}), heading=columns[:2])
    left = number_of(len(rows) - len(full), "run")
    return Group(table, Text(f"and {left} without cases (--json has all)", "dim")) if len(full) < len(rows) else table


def render_results(results: Iterable[Result]) -> RenderableType:
    """Show one run's results."""
    rows = (
        (Text(result.status, STYLES.get(result.status, "")), result.name, result.kernel, result.explained)
        for result in results
    )
    columns = ("status", "case", "kernel", "reason")
    return Table(columns, tuple(rows), prose=frozenset({"reason"}), heading=columns[:2])
