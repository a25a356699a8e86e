"""The options for judging a case: with or without the rounding model, which rows, how many runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.layout import REPEATS_ABOVE
from fattn_probe.llama.launch.geometry import Geometry
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.llama.launch.selection import chosen_tiles, flop_of, rows_of_tiles, select
from fattn_probe.machine.run.capture import Part

UseModel = Literal["auto", "always", "never"]
Sample = int | Literal["auto", "all"]
WHOLE_FLOP = 1e12
"""With more operations, only a sample of a case's rows is checked; this many take ten seconds on two cores."""
WHOLE_BYTES = 4 << 30
"""With more bytes of inputs, only a sample of a case's rows is checked."""
MOST_SECONDS = 60.0
"""CPU seconds that a case may take on a simulated GPU; in longer cases only some blocks run."""
PART_SECONDS = 20.0
"""CPU seconds to spend on these blocks."""
RATES = {"mma_f16": 2.8e9, "tile": 0.4e9, "vec": 0.4e9}
"""Operations per CPU second, by kernel family."""
MOST_TILES = 24
QUERIES_ALONE = 4
"""Queries that the check of batch invariance computes alone."""


def is_huge(case: Case) -> bool:
    """Whether an operand or dst is so large that it is neither stored nor read whole."""
    sizes = case.op.sizes
    dst = 4 * sizes.n_seq * sizes.n_q * sizes.n_head * sizes.hsv
    return dst > REPEATS_ABOVE or any(root.period is not None for root in case.op.roots.values())


@dataclass(frozen=True)
class Checks:
    """How a case is judged, in addition to the exact answer and the error model.

    `model`: when the rounding model is computed (`auto`: up to 4 GFLOP). `sample`: which rows are checked exactly
    (`auto`: all, except in very large cases; a number: that many, including the required ones). `repeat` runs must have
    the same bits. `batch_invariance` is the number of queries that are also computed alone. With `roundings`, an output
    fails if it differs in its bits from the rounding model where a correct kernel does not: the kernel then rounds a
    different value, or in a different way, even if its error is small. With `kernels`, it fails if the default release
    is known to launch different kernels for this op on this GPU. `order`: the number of random orders in which all
    cases of an entry run in one process; each case must give the same result as when it runs alone. `predictions`:
    whether the error model is computed for display where the rounding model decides; no verdict depends on it.
    """

    model: UseModel = "auto"
    sample: Sample = "auto"
    repeat: int = 1
    batch_invariance: int = 0
    roundings: bool = False
    kernels: bool = False
    order: int = 0
    predictions: bool = True

    @property
    def of_one_run(self) -> bool:
        """Whether a verdict is about the output of one run alone."""
        return self.repeat == 1 and not self.batch_invariance and not self.order

    def samples(self, case: Case) -> bool:
        """Whether only a sample of a case's rows is checked exactly."""
        if case.recorded:  # without a rule for its mask, the rows that matter are unknown
            return False
        large = case.op.sizes.flop > WHOLE_FLOP or sum(root.nbytes for root in case.op.roots.values()) > WHOLE_BYTES
        return large if self.sample == "auto" else self.sample != "all"

    def may_take_part(self, case: Case) -> bool:
        """Whether a case may be too large to run or read completely: it is huge, or takes minutes when simulated."""
        slow = case.op.sizes.flop > MOST_SECONDS * min(RATES.values())
        return self.sample != "all" and not case.recorded and (is_huge(case) or slow)

    def part(self, case: Case, geometry: Geometry, launches: Sequence[LaunchRecord], target: Target) -> Part | None:
        """The part of a case to run and to read on a target; None for the whole case."""
        rate = RATES[geometry.kernel.family.name]
        slow = target.engine == "sim" and flop_of(geometry) > MOST_SECONDS * rate
        if not (slow or is_huge(case)):
            return None
        selection = select(geometry, launches, case.op.sizes, chosen_tiles(geometry, PART_SECONDS * rate, MOST_TILES))
        return Part(selection, rows_of_tiles(geometry, case.op.sizes, selection.complete))

    @property
    def number_of_rows(self) -> int | None:
        """The number of rows to sample; None if it depends on the case."""
        return self.sample if isinstance(self.sample, int) else None

    def __str__(self) -> str:
        runs = f"{self.repeat} runs must have equal bits" if self.repeat > 1 else "1 run"
        alone = f", {self.batch_invariance} queries also alone" if self.batch_invariance else ""
        bits = ", roundings as in the model" if self.roundings else ""
        known = ", kernels as known" if self.kernels else ""
        orders = f", {self.order} orders of all cases in one process" if self.order else ""
        return f"rounding model {self.model}, rows {self.sample}, {runs}{alone}{bits}{known}{orders}"


def sample_of(text: str) -> Sample:
    """The value of `--sample`; InputError unless it is a number of rows, `all` or `auto`."""
    if text in ("auto", "all"):
        return "auto" if text == "auto" else "all"
    if not text.isdecimal() or int(text) == 0:
        raise InputError(f"--sample {text}: a number of rows (1 or more), all or auto")
    return int(text)
