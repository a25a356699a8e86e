"""How a case is checked: with the rounding model or without, which rows, how many runs."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from fattn_probe.errors import InputError
from fattn_probe.scenario import Case

UseModel = Literal["auto", "always", "never"]
Sample = int | Literal["auto", "all"]
WHOLE_FLOP = 1e12
"""Operations of a case above which only a sample of its rows is checked: ten seconds on two cores."""
WHOLE_BYTES = 4 << 30
"""Bytes of a case's inputs above which only a sample of its rows is checked."""
QUERIES_ALONE = 4
"""Queries that the check of batch invariance computes alone."""


@dataclass(frozen=True)
class Checks:
    """How a case is judged, in addition to the exact answer and the error model.

    `model`: when the rounding model is computed (`auto`: up to 4 GFLOP). `sample`: which rows are checked exactly
    (`auto`: all, except in very large cases; a number: that many, including the required ones). `repeat` runs must have
    equal bits. `batch_invariance` is the number of queries that are also computed alone.
    """

    model: UseModel = "auto"
    sample: Sample = "auto"
    repeat: int = 1
    batch_invariance: int = 0

    def samples(self, case: Case) -> bool:
        """Whether only a sample of a case's rows is checked exactly."""
        large = case.op.sizes.flop > WHOLE_FLOP or sum(root.nbytes for root in case.op.roots.values()) > WHOLE_BYTES
        return large if self.sample == "auto" else self.sample != "all"

    @property
    def number_of_rows(self) -> int | None:
        """The number of rows to sample; None to choose it by the case."""
        return self.sample if isinstance(self.sample, int) else None

    def __str__(self) -> str:
        runs = f"{self.repeat} runs must have equal bits" if self.repeat > 1 else "1 run"
        alone = f", {self.batch_invariance} queries also alone" if self.batch_invariance else ""
        return f"rounding model {self.model}, rows {self.sample}, {runs}{alone}"


def sample_of(text: str) -> Sample:
    """The value of `--sample`; InputError unless it is a number of rows, `all` or `auto`."""
    if text in ("auto", "all"):
        return "auto" if text == "auto" else "all"
    if not text.isdecimal() or int(text) == 0:
        raise InputError(f"--sample {text}: a number of rows (1 or more), all or auto")
    return int(text)


def checks_of(document: dict[str, Any]) -> Checks:
    """Checks from their JSON: the fields by name; those missing have their defaults."""
    known = {name: value for name, value in document.items() if name in Checks.__dataclass_fields__}
    assert known.get("model", "auto") in get_args(UseModel)
    return Checks(**known)
