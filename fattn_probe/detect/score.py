"""How true diagnoses are: the cause that is said first, compared with the label of the fault."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fattn_probe.compare.diagnose.kinds import KINDS, NONE
from fattn_probe.errors import InputError
from fattn_probe.source.faults import HistoricFault

Grade = Literal["right", "silent", "false"]


def grade(cause: str, fault: HistoricFault) -> Grade:
    """The grade of a cause, empty if none is said; to say none is right of a fault that no wrong output shows."""
    unknown = set(fault.diagnosis) - {*KINDS, NONE}
    if unknown:
        raise InputError(f"{fault.patch.path}: diagnosis: {', '.join(unknown)} is none of {', '.join(KINDS)}, {NONE}")
    if (cause or NONE) in fault.diagnosis:
        return "right"
    return "false" if cause else "silent"


@dataclass(frozen=True)
class Score:
    """The number of diagnoses by grade."""

    right: int
    silent: int
    false: int

    @classmethod
    def of(cls, grades: Iterable[Grade]) -> "Score":
        """Count grades."""
        counts = Counter(grades)
        return cls(counts["right"], counts["silent"], counts["false"])

    @property
    def total(self) -> int:
        """All diagnoses."""
        return self.right + self.silent + self.false

    def __str__(self) -> str:
        if not self.total:
            return "nothing was diagnosed"
        parts = (f"{number} {name} ({100 * number / self.total:.3g} %)" for name, number in vars(self).items())
        return f"{self.total} diagnosed: {', '.join(parts)}"
