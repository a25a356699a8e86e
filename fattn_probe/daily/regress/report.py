"""The HTML page of a history: the last runs, what changed, and errors, times and verdicts over time."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from fattn_probe.base.figures import minute, number_of, times
from fattn_probe.base.tables import Table
from fattn_probe.daily.inspect.view.page import environment, map_of
from fattn_probe.daily.regress.changes import ChangeKind
from fattn_probe.daily.regress.exercised import families, ops_of
from fattn_probe.daily.regress.history import History
from fattn_probe.daily.regress.night import Night, shown, worst
from fattn_probe.daily.regress.plots import ERRORS, Square, log10, picture_of, plot, strip, swatch, tiles_of, work_facts
from fattn_probe.daily.regress.records import Cell, Identity, Result, Run
from fattn_probe.machine.run.frames import brief_frame
from fattn_probe.verdict.judge.known import by_defect

WHY = {
    ChangeKind.NEW_FAILURE: "the output is now wrong",
    ChangeKind.SUPPORT_LOST: "the op now falls back to the CPU",
    ChangeKind.UNCOMPILED: "no verdict: the compiler now refuses the source",
    ChangeKind.SLOWER: "the same work takes longer",
    ChangeKind.KERNEL: "different code computes this op; its rounding and its speed may differ",
    ChangeKind.LAUNCH: "the work is divided differently",
    ChangeKind.BITS: "still correct, but not bit-identical: cached outputs and golden files no longer match",
    ChangeKind.UNJUDGED: "it is unknown whether the output is correct",
    ChangeKind.LOST: "no verdict",
    ChangeKind.NOT_RUN: "no verdict",
    ChangeKind.REMOVED: "the suite no longer has the case",
}
MOST_CHANGES, MOST_LISTED, MOST_CASES, MOST_MAPS, MOST_WRONG = 200, 200, 120, 6, 12
"""The largest number of rows or pictures in a section, since there may be thousands of cases."""
LEAST_DECADE = 1.0
LEAST_TIME = 0.1
"""The smallest range that a plot's height covers: a factor of ten in the error, a tenth of the time."""


def report(history: History, suite: str = "") -> str:
    """Generate the page; for one suite only, if given."""
    found = list(shown(history, suite))
    once = {(night.run.identity.line, night.run.suite): night for night in reversed(found)}  # without partial runs
    statuses = {key: {name: result.status for name, result in night.results.items()} for key, night in once.items()}
    ops = ops_of([(night.run, night.cases, statuses[key]) for key, night in reversed(once.items())])
    devices, rows = dict.fromkeys(night.run.identity.device for night in reversed(once.values())), []
    for kind, cells in ops.items():
        counts = [cells.get(device) for device in devices]  # (passed, ran)
        said = ("" if of is None else f"{of[0]}" if of[0] == of[1] else f"{of[0]} of {of[1]}" for of in counts)
        rows.append((*kind, *said))
    table = Table(("head size", "K, V", "mask", "with", *devices), tuple(rows), frozenset(devices))
    names = sorted({night.run.suite for night in found})
    words = {
        "title": f"flash attention: {', '.join(names) or 'no runs yet'}",
        "sections": [_section(history, night) for night in found],
        "families": families(history, [night.run for night in once.values()]),
        "ops": table if ops else None,
        "swatch": swatch,
        "scale": ERRORS,
    }
    return environment("fattn_probe.daily.regress").get_template("report.html.j2").render(words)


def _section(history: History, night: Night) -> dict[str, Any]:
    run, baseline = night.run, night.baseline
    identity, settings = run.identity, run.settings
    about = {"source": identity.source, "build_number": identity.build_number, "patches": identity.patches}
    about |= {"started": minute(run.started), "driver": identity.driver, "machine": identity.machine}
    about |= {"judged with": str(settings.checks or ""), "filter": settings.only}
    accepted = ""
    if baseline:
        accepted = f"the run of {minute(baseline.started)} ({baseline.identity.tree}), accepted by {night.accepted}"
    words, status = verdict_of(night)
    unexplained = [result for result in night.failures if not result.known]
    moved = sorted(night.changes, key=lambda change: not change.alarm)[:MOST_CHANGES]
    rows = ((change.case, change.kind.value, change.words, WHY.get(change.kind, "")) for change in moved)
    return {
        "id": f"run-{run.uid[:8]}",
        "title": f"{identity.device}, {run.suite}{partial(run)}",
        "device": identity.device,
        "suite": f"{run.suite}{partial(run)}",
        "tree": identity.tree,
        "run": {name: value for name, value in about.items() if value},
        "verdict": words,
        "status": status,
        "baseline": accepted,
        "counts": night.counts,
        "changes": Table(("case", "change", "before and now", "why it matters"), tuple(rows)),
        "hidden_changes": max(0, len(night.changes) - MOST_CHANGES),
        "known": by_defect(result.known for result in night.failures),
        "failures": [_failure(night, result) for result in unexplained[:MOST_LISTED]],
        "hidden_failures": max(0, len(unexplained) - MOST_LISTED),
        "unjudged": list(unjudged(night)),
        "maps": list(_maps(night)),
        "timed": any(result.seconds for result in night.results.values()),
        "scenarios": [_scenario(night, name, cases) for name, cases in night.scenarios.items()],
        "runs": number_of(len(night.runs), "run"),
        "cases": [_case(history, night, name) for name in night.worth_a_look(MOST_CASES)],
        "hidden_cases": max(0, len(night.results) - MOST_CASES),
    }


def partial(run: Run) -> str:
    """The reason if a run is partial: it did not finish, or it had a filter."""
    stopped = ", not finished" if run.ended is None else ""
    return f"{stopped}, only {run.settings.only}" if run.settings.only else stopped


def verdict_of(night: Night) -> tuple[str, str]:
    """The run's verdict in a few words, worst result first, and a status: pass, fail, or lost (no verdict)."""
    unsaid = sum(night.counts.get(status, 0) for status in ("unjudged", "lost", "not run"))
    wrong, changed, rest = len(night.failures), len(night.changes), f"{unsaid} without a verdict"
    if night.alarms or (wrong and night.baseline is None):
        bad = number_of(len(night.alarms), "regression") if night.alarms else f"{wrong} wrong; no accepted run yet"
        return f"{bad}, {rest}" if unsaid else bad, "fail"
    if night.baseline is None:
        said = "nothing wrong; no accepted run yet"
    else:
        said = f"nothing got worse; {changed} changed" if changed else "nothing changed"
    return (f"{rest}; otherwise {said}", "lost") if unsaid else (said, "pass")


def unjudged(night: Night) -> Iterator[tuple[str, str]]:
    """Yield (case, reason) for each case without a verdict."""
    for part in night.unfinished:
        yield part, "not finished: the run was killed, is still running, or its history was not merged"
    silent = ("lost", "unjudged")
    lost = [(result.name, result.reason) for result in night.results.values() if result.status in silent]
    gone = [(change.case, f"not run; {change.words}") for change in night.changes if change.kind is ChangeKind.NOT_RUN]
    yield from [*lost, *gone][:MOST_LISTED]
    others = len(lost) + max(len(gone), night.not_run) - min(len(lost) + len(gone), MOST_LISTED)
    if others > 0:
        yield f"{others} more", "lost, unjudged or not run"


def _failure(night: Night, result: Result) -> dict[str, Any]:
    packed, case, size, picture = night.error_maps.get(result.name), night.cases.get(result.name), "", None
    if packed:
        size = f"{number_of(packed.heads, 'head')} x {packed.queries} quer{'y' if packed.queries == 1 else 'ies'}"
        if night.failures.index(result) < MOST_WRONG:
            tiles = tiles_of(case, result, night.run.identity) if case else ()
            picture = picture_of(packed, f"errors of {result.name}, {size}", tiles)
    crash, finding = None, result.finding  # where a fault stopped a kernel, if one did
    if finding is not None:
        line = f"{finding.file}:{finding.line}" if finding.file else ""
        frames = tuple(map(brief_frame, finding.frames))
        crash = {"thread": replace(finding, file="").place, "line": line, "frames": frames}
    return {
        "name": result.name,
        "reason": result.explained,
        "kernel": result.kernel,
        "map": picture,
        "crash": crash,
        "size": size,
    }


def _maps(night: Night) -> Iterator[dict[str, Any]]:
    """Yield the division of work, now and before, for cases that failed or whose launch changed."""
    moved = [change.case for change in night.changes if change.kind in (ChangeKind.LAUNCH, ChangeKind.KERNEL)]
    names = dict.fromkeys([*(result.name for result in night.failures), *moved])
    for place, name in enumerate([name for name in names if name in night.cases][:MOST_MAPS]):
        now = _map(night, night.results[name], night.run.identity, f"map{night.run.uid[:8]}-{place}")
        was = night.before.get(name) if name in moved else None
        past = _map(night, was, night.run.identity, f"was{night.run.uid[:8]}-{place}") if was else None
        if now:
            yield {"name": name, "now": now, "was": past}


def _map(night: Night, result: Result, identity: Identity, name: str) -> dict[str, Any] | None:
    facts = work_facts(night.cases[result.name], result, identity)
    drawn = map_of(facts, name) if facts else None
    return {"kernel": result.kernel} | drawn if drawn else None


def _scenario(night: Night, name: str, cases: Sequence[str]) -> dict[str, Any]:
    by_run = [[night.cells[case][run.id] for case in cases if run.id in night.cells[case]] for run in night.runs]
    marks = []
    for run, cells in zip(night.runs, by_run, strict=True):
        if cells:
            status = worst([cell.status for cell in cells])
            number = sum(cell.status == status for cell in cells)
            some = f" ({number} of {len(cells)})" if len(cells) > 1 else ""
            marks.append(Square(status, f"{run.started[:10]} {run.identity.source}: {status}{some}"))
    last = [cell for cell in by_run[-1] if cell.ratio is not None]
    return {
        "name": name,
        "count": len(cases),
        "status": worst([night.results[case].status for case in cases]),
        "strip": strip(marks),
        "ratio": _ratio(max((cell.ratio or 0.0 for cell in last), default=None)),
        "errors": _errors(by_run, name),
        "times": _times(by_run, name),
    }


def _errors(by_run: Sequence[Sequence[Cell]], name: str) -> Markup:
    """Plot each run's largest and median error / bound, or NMSE if the last run with an output has no bound."""
    known = [[cell.ratio for cell in cells if cell.ratio is not None] for cells in by_run]
    errors = [[cell.nmse for cell in cells if cell.nmse is not None] for cells in by_run]
    limit: float | None = 0.0
    if not next((bounds for bounds, one in zip(reversed(known), reversed(errors), strict=True) if one), None):
        known, limit = errors, None
    most = [log10(max(values, default=None)) for values in known]
    middle = [log10(statistics.median(values)) if values else None for values in known]
    return plot({"middle": middle, "most": most}, f"error by run, {name}", least=LEAST_DECADE, limit=limit)


def _times(by_run: Sequence[Sequence[Cell]], name: str) -> Markup:
    """Plot the sum of the cases' times, for runs in which all cases were timed."""
    number = max((sum(cell.time is not None for cell in cells) for cells in by_run), default=0)
    timed = [[cell.time for cell in cells if cell.time is not None] for cells in by_run]
    sums = tuple(sum(times) if times and len(times) == number else None for times in timed)
    least = LEAST_TIME * max((value for value in sums if value), default=0.0)
    return plot({"most": sums}, f"time by run, {name}", least=least)


def _case(history: History, night: Night, name: str) -> dict[str, Any]:
    result, cells = night.results[name], night.cells.get(name, {})
    nmse = result.metrics.get("nmse")
    outputs = history.outputs(night.runs, name)
    rows = [[cells[run.id]] if run.id in cells else [] for run in night.runs]
    marks, before = [], None
    for run in (run for run in night.runs if run.id in cells):
        now, status = outputs.get(run.id), cells[run.id].status
        changed = None not in (before, now) and before != now
        said = f"{run.started[:10]} {run.identity.source}: {status}{', bits changed' * changed}"
        marks.append(Square(status, said, changed))
        before = now or before
    return {
        "name": name,
        "status": result.status,
        "kernel": result.kernel,
        "nmse": "" if nmse is None else f"{nmse:.2e}",
        "ratio": _ratio(result.metrics.get("error_by_bound")) or _bits(result.metrics.get("equal_bits")),
        "strip": strip(marks),
        "errors": _errors(rows, name),
        "times": _times(rows, name),
    }


def _ratio(value: float | None) -> str:
    """The largest error / bound, if known."""
    return "" if value is None else times(value, 2)


def _bits(share: float | None) -> str:
    """The share of elements that match the rounding model bit for bit, if known."""
    return "" if share is None else f"{100 * share:.3g} % equal"
