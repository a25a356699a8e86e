"""The table of what suites catch of the corpus, as a page of the docs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fattn_probe.compare.diagnose.kinds import NONE
from fattn_probe.detect.planted import Tried, killers_of, text_of
from fattn_probe.detect.score import Grade, Score, grade
from fattn_probe.source.faults import HistoricFault

HEAD = """\
# What the suites catch of the corpus

Made by `scripts/detection page`; do not edit. `scripts/detection faults` makes the results
([detection.md](detection.md)), which are in [corpus.jsonl](corpus.jsonl). Each fault is planted in b11549, and the
cases of a suite that it can change are judged until one gives it away, those of the most used kernels first; `shows`
is the fault's own case. `cause` is what the diagnosis of a wrong output says first, in the words of
`fattn_probe/compare/diagnose/kinds.py`; it is right if the fault's head has it as a label (`none`: no wrong output
shows the cause, and silence is right). Seconds include compiling.
"""
MOST = 90  # characters of what was said


def page(corpus: Sequence[HistoricFault], results: Sequence[Tried]) -> str:
    """The page, with a section for each suite of the results; those of an older patch do not count."""
    known = {fault.patch.name: fault for fault in corpus}
    parts = [HEAD]
    for suite in sorted({item.suite for item in results}):
        tried = list(holding(results, known, suite).values())
        if not tried:
            continue
        parts.append(f"## {suite}\n\n{share(tried, known)}\n\n" + "\n".join(rows(tried, known)) + "\n")
    return "\n".join(parts)


def holding(results: Iterable[Tried], known: Mapping[str, HistoricFault], suite: str) -> dict[str, Tried]:
    """By fault, the last result of a suite that holds, or one of another suite if that has a case which catches it."""
    found = [item for item in results if current(item, known.get(item.fault), suite)]
    own = {item.fault: item for item in found if item.suite == suite}
    others = {item.fault: item for item in found if item.suite != suite}
    best = own | {name: item for name, item in others.items() if name not in own or own[name].caught is None}
    return {name: best[name] for name in known if name in best}


def current(item: Tried, fault: HistoricFault | None, suite: str) -> bool:
    """Whether a result is about the fault as it is now, and holds for a suite as it is now.

    A case that catches a fault does so in every suite that has it.
    """
    if fault is None or item.digest != fault.patch.changes:
        return False
    if item.suite == suite and item.text == text_of(suite):
        return True
    return item.caught is not None and item.killer in killers_of(suite)


def share(tried: Sequence[Tried], known: Mapping[str, HistoricFault]) -> str:
    """How many are caught, and how many of their diagnoses are right."""
    caught = [item.caught for item in tried if item.caught is not None]
    left = f", {len(known) - len(tried)} not tried by the suite as it is" if len(tried) < len(known) else ""
    percent = 100 * len(caught) / len(known)
    return f"**{len(caught)} of {len(known)} caught ({percent:.3g} %)**{left}. {by_value(tried, known)}"


def by_value(tried: Sequence[Tried], known: Mapping[str, HistoricFault]) -> str:
    """The score of what is caught by a wrong output; also without the faults that no wrong output shows."""
    grades = [(graded(item, known[item.fault]), known[item.fault].diagnosis) for item in tried]
    every = Score.of(one for one, _ in grades if one is not None)
    shown = Score.of(one for one, label in grades if one is not None and label != (NONE,))
    rest = "" if shown == every else f" Without the label `none`: {shown}."
    return f"By value: {every}.{rest}"


def graded(item: Tried, fault: HistoricFault) -> Grade | None:
    """The grade of a diagnosis; None if there is none."""
    return None if item.caught is None or item.caught.cause is None else grade(item.caught.cause, fault)


def rows(tried: Sequence[Tried], known: Mapping[str, HistoricFault]) -> Iterator[str]:
    """The table, those first that were not caught."""
    yield "| fault | family | by | case | cases | s | cause | label | diagnosis | said |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for item in sorted(tried, key=lambda item: item.caught is not None):
        fault, caught = known[item.fault], item.caught
        if caught is None:
            by, case, cause, said = "**not caught**", "", "", ""
        else:
            by, case, cause = caught.by, f"{caught.case} on {caught.on}", caught.cause or ""
            said = " ".join(caught.said.split())
            said = (said if len(said) <= MOST else f"{said[: MOST - 3]}...").replace("|", "\\|")
        cells = (item.fault, fault.family, by, case, str(item.cases), f"{item.seconds:.0f}", cause)
        grades = (", ".join(fault.diagnosis), graded(item, fault) or "")
        yield f"| {' | '.join((*cells, *grades, said))} |"
