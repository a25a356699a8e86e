"""How correct diagnoses are: the first cause, compared with the label of the fault."""

from collections import Counter
from collections.abc import Iterable
from typing import Literal, get_args

from fattn_probe.base.errors import InputError
from fattn_probe.llama.source.faults import HistoricFault
from fattn_probe.verdict.diagnose.faults import KINDS, NONE

Grade = Literal["right", "silent", "false"]


def grade(cause: str, fault: HistoricFault) -> Grade:
    """The grade of a cause, empty for none, which is correct for a fault that no wrong output shows."""
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
