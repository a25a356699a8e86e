"""The docs page with the table of the faults in the corpus that suites catch."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, get_args

from fattn_probe.base.errors import InputError
from fattn_probe.llama.source.faults import HistoricFault
from fattn_probe.verdict.diagnose.faults import KINDS, NONE
from maintain.fault_cases import SHOWS
from maintain.faults import LAUNCH, Tried, killers_of, of_its_vendors, text_of

HEAD = """\
# Historic faults that the suites catch

Made by `scripts/detection page`; do not edit. The results, made by `scripts/detection faults`
([detection](../guide/detection.md)), are in [corpus.jsonl](corpus.jsonl). Each fault is planted in b11549. The cases
of a suite that the fault can affect are judged until one detects it, starting with the most used kernels. The section
`shows` lists each fault's own case, but only if no suite above shows the same result. `by` is the way in which the case
shows the fault: `check` is a check of bits, kernels or orders; `launch` means that no result failed, but `regress`
reports changed launches. `cause` is the first cause (from `fattn_probe/verdict/diagnose/faults.py`) that the diagnosis
of a wrong output names. It is correct (`right`) if the fault's header lists it as a label; for the label `none`, no
wrong output can reveal the cause, so silence is correct. `s` is the time in seconds, including compiling.
"""
MOST = 90  # the largest number of characters of a reason
Grade = Literal["right", "silent", "false"]
"""The grade of a diagnosis: its first cause, compared with the label of the fault."""


def page(corpus: Sequence[HistoricFault], results: Sequence[Tried], suites: Sequence[str]) -> str:
    """The page: a section for each suite with results, on the faults that show on its GPUs; only current patches."""
    parts, listed = [HEAD], set[Tried]()
    for suite in suites:
        known = of_its_vendors(corpus, suite)
        tried = list(holding(results, known, suite).values())
        if tried:
            further = [item for item in tried if suite != SHOWS or item not in listed]
            listed.update(tried)
            caught = sum(item.caught is not None for item in tried)
            launches = sum(item.caught is not None and item.caught.by == LAUNCH for item in tried)
            left = f", {launches} of them only by changed launches" if launches else ""
            left += f"; {len(known) - len(tried)} not tried by the present suite" if len(tried) < len(known) else ""
            share = f"**{caught} of {len(known)} caught ({100 * caught / len(known):.3g} %)**{left}. "
            table = "\n".join(rows(further, known))
            parts.append(f"## {suite}\n\n{share}{by_value(tried, known)}\n\n{table}\n")
    return "\n".join(parts)


def holding(results: Iterable[Tried], known: Mapping[str, HistoricFault], suite: str) -> dict[str, Tried]:
    """By fault, the suite's last valid result, or that of another suite if the suite has the case that caught it.

    A case that catches a fault does so in every suite that has it. A result must be about the fault as it is now.
    """
    own, others, text = dict[str, Tried](), dict[str, Tried](), text_of(suite)
    for item in results:
        fault = known.get(item.fault)
        if fault is None or item.digest != fault.patch.changes:
            continue
        caught = item.caught is not None and item.killer in killers_of(suite)
        if caught or (item.suite == suite and item.text == text):
            (own if item.suite == suite else others)[item.fault] = item
    best = own | {name: item for name, item in others.items() if name not in own or own[name].caught is None}
    return {name: best[name] for name in known if name in best}


def by_value(tried: Sequence[Tried], known: Mapping[str, HistoricFault]) -> str:
    """The score of the faults that are caught by a wrong output; also without the faults that no wrong output shows."""
    grades = [(graded(item, known[item.fault]), known[item.fault].diagnosis) for item in tried]
    every = score(one for one, _ in grades if one is not None)
    shown = score(one for one, label in grades if one is not None and label != (NONE,))
    return f"Wrong outputs: {every}." + ("" if shown == every else f" Without the label `none`: {shown}.")


def graded(item: Tried, fault: HistoricFault) -> Grade | None:
    """The grade of a diagnosis; None without a diagnosis."""
    return None if item.caught is None or item.caught.cause is None else grade(item.caught.cause, fault)


def rows(tried: Sequence[Tried], known: Mapping[str, HistoricFault]) -> Iterator[str]:
    """The table; faults that were not caught come first."""
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


def grade(cause: str, fault: HistoricFault) -> Grade:
    """The grade of a cause; an empty cause is correct for a fault that no wrong output shows."""
    unknown = set(fault.diagnosis) - {*KINDS, NONE}
    if unknown:
        raise InputError(f"{fault.patch.path}: diagnosis: {', '.join(unknown)} is none of {', '.join(KINDS)}, {NONE}")
    if (cause or NONE) in fault.diagnosis:
        return "right"
    return "false" if cause else "silent"


def score(grades: Iterable[Grade]) -> str:
    """The number of diagnoses by grade: `4 diagnosed: 3 right (75 %), ...`."""
    counts = Counter(grades)
    if not counts:
        return "nothing was diagnosed"
    parts = (f"{counts[name]} {name} ({100 * counts[name] / counts.total():.3g} %)" for name in get_args(Grade))
    return f"{counts.total()} diagnosed: {', '.join(parts)}"
