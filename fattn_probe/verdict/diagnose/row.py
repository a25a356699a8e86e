"""A wrong row of the output, and the changes that faults cause.

A row has its logits and weights in float64, the memory around its operands, and its error. Each kind of fault predicts
errors (`Moves`). A fault fits if the remaining error is not larger than the kernel's rounding. The most likely fault
leaves the smallest error, given the number of alternatives (Schwarz' criterion, Annals of Statistics 6, 1978).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fattn_probe.base.arrays import F64, Bools, Bytes, Floats, Indices
from fattn_probe.cases.op import TensorView
from fattn_probe.cases.scenario import Case
from fattn_probe.llama.launch.tiles import TileWork
from fattn_probe.verdict.diagnose.constants import EXPLAINED, LEAST, LEFT, LEFT_OF_MANY, NEAR, ROUNDING, WORK
from fattn_probe.verdict.truth.reference.adapter import stored_rows
from fattn_probe.verdict.truth.reference.attention import alibi_slopes

RowIndex = tuple[int, int, int]
"""(sequence, query, head)."""
Named = tuple[str, F64]
"""A different output of a row, with its name in words."""


def unlike(here: RowIndex, other: RowIndex) -> str:
    """The name of another row: the coordinates that differ from those of `here`."""
    axes = zip(("sequence", "query", "head"), here, other, strict=True)
    return "that of " + ", ".join(f"{name} {there}" for name, own, there in axes if own != there)


@dataclass(frozen=True, eq=False)
class AttentionRow:
    """A row: `raw` logits before softcap and mask; `mask` as added to them, -inf where hidden; `sink` or None.

    `slope` is the slope of ALiBi, by which `mask` is already multiplied; 1 without ALiBi.
    """

    K: F64
    V: F64
    raw: F64
    mask: F64
    softcap: float
    sink: float | None
    slope: float = 1.0

    @classmethod
    def of(cls, around: "Around", kv: tuple[F64, F64] | None = None) -> "AttentionRow":
        """The row of a query and head; `kv` are its K and V if they are decoded already."""
        case, params, head = around.case, around.case.op.params.stored, around.head
        K, V = kv or around.kv
        mask, slope = np.zeros(case.op.sizes.n_kv), 1.0
        if "mask" in case.op.tensors:
            stored = np.asarray(stored_rows(case.op.operands["mask"], around.inputs))
            mask = stored[around.sequence % len(stored), head % stored.shape[1], around.query].astype(np.float64)
            slope = float(alibi_slopes(case.op.sizes.n_head, params.max_bias)[head])
            mask = mask * slope
        sink = None
        if "sinks" in case.op.tensors:
            sink = float(np.asarray(stored_rows(case.op.tensors["sinks"], around.inputs)).ravel()[head])
        return cls(K, V, K @ around.q * params.scale, mask, params.logit_softcap, sink, slope)

    @property
    def logits(self) -> F64:
        """The logits that enter the softmax: -inf where hidden, even if `raw` is infinite or NaN."""
        raw = self.softcap * np.tanh(self.raw / self.softcap) if self.softcap else self.raw
        return np.add(raw, self.mask, out=np.full_like(raw, -np.inf), where=self.mask != -np.inf)

    def weights(self, logits: F64) -> F64:
        """The softmax; all 0 if the mask hides everything, and NaN where a visible logit is +inf, as in a kernel."""
        top = logits.max() if self.sink is None else max(logits.max(), self.sink)
        if top == -np.inf:
            return np.zeros_like(logits)
        with np.errstate(invalid="ignore"):  # inf - inf
            p = np.exp(logits - top)
        total = p.sum() + (0.0 if self.sink is None else np.exp(self.sink - top))
        return np.asarray(p / total)

    def output(self, logits: F64) -> F64:
        """The exact output for some logits."""
        return np.asarray(self.weights(logits) @ self.V)

    def answer(self, **changes: Any) -> F64:  # noqa: ANN401
        """The exact output with some data changed: `answer(sink=None)`."""
        other = replace(self, **changes)
        with np.errstate(all="ignore"):  # a wrong location in memory may hold anything
            return other.output(other.logits)

    @cached_property
    def p(self) -> F64:
        """The exact weights."""
        return self.weights(self.logits)

    @cached_property
    def out(self) -> F64:
        """The exact output."""
        return np.asarray(self.p @ self.V)

    @cached_property
    def pulls(self) -> F64:
        """The pull of each KV row on the output, (n_kv, hsv): its weight times its distance from the output."""
        return np.asarray(self.p[:, None] * (self.V - self.out))


@dataclass(frozen=True, eq=False)
class Around:
    """The operands of a row (sequence, query, head) in memory; shows what a wrong offset or stride would read."""

    case: Case
    inputs: Mapping[str, Bytes]
    sequence: int
    query: int
    head: int

    @property
    def kv_head(self) -> int:
        """The head of K and V."""
        return self.head // self.case.op.sizes.group

    @property
    def scale(self) -> float:
        """The factor applied to the products of Q and K."""
        return float(self.case.op.params.stored.scale)

    @property
    def kv(self) -> tuple[F64, F64]:
        """K (n_kv, hsk) and V (n_kv, hsv) of the head as stored, in float64."""
        stored, all_rows = (
            (stored_rows(self.view(name), self.inputs) for name in "KV"),
            slice(0, self.case.op.sizes.n_kv),
        )
        K, V = (np.asarray(rows[self.sequence, self.kv_head, all_rows], np.float64) for rows in stored)
        return K, V

    @cached_property
    def q(self) -> F64:
        """The row of Q."""
        return self.q_of(self.sequence, self.query, self.head)

    def q_of(self, sequence: int, query: int, head: int) -> F64:
        """Any row of Q."""
        rows = np.asarray(stored_rows(self.case.op.tensors["Q"], self.inputs))
        return np.asarray(rows[sequence, head, query], np.float64)

    def view(self, name: str) -> TensorView:
        """An operand."""
        return self.case.op.tensors[name]

    def has(self, name: str) -> bool:
        """Whether the op has this operand, and its memory does not repeat."""
        tensors = self.case.op.tensors
        return name in tensors and self.case.op.roots[tensors[name].root].period is None

    def raw(self, K: F64) -> F64:
        """The logits of some rows of K, before softcap and mask."""
        with np.errstate(all="ignore"):  # a wrong location in memory may hold anything
            return np.asarray(K @ self.q * self.scale)

    def rows(self, view: TensorView, sequence: int | None = None, kv_head: int | None = None) -> F64 | None:
        """The rows of a view for this row; None if the view reaches outside its allocation, or its memory repeats."""
        sequence = self.sequence if sequence is None else sequence
        kv_head = self.kv_head if kv_head is None else kv_head
        if self.case.op.roots[view.root].period is not None:
            return None
        one = replace(view, ne=(*view.ne[:2], 1, 1), offset=view.offset + sequence * view.nb[3] + kv_head * view.nb[2])
        if one.offset < 0 or one.end > self.inputs[view.root].size:
            return None
        with np.errstate(all="ignore"):
            return np.asarray(stored_rows(one, self.inputs)[0, 0, slice(0, view.ne[1])], np.float64)

    def behind(self, name: str, count: int) -> F64 | None:
        """The rows of K or V in memory after the last one."""
        view = self.view(name)
        return self.rows(
            replace(view, ne=(view.ne[0], count, *view.ne[2:]), offset=view.offset + view.ne[1] * view.nb[1])
        )

    @property
    def mask_start(self) -> int:
        """The first entry of this row's mask, counted from the start of the mask; head h reads plane h % ne[2]."""
        view = self.view("mask")
        planes = self.sequence % view.ne[3] * view.nb[3] + self.head % view.ne[2] * view.nb[2]
        return (planes + self.query * view.nb[1]) // 2

    def mask_entries(self, start: int, count: int) -> F64 | None:
        """Entries of the mask in memory, from `start` on; None beyond the allocation."""
        flat = self.inputs[self.view("mask").root][self.view("mask").offset :].view(np.float16)
        return flat[start : start + count].astype(np.float64) if 0 <= start <= len(flat) - count else None

    def masks(self) -> Iterator[Named]:
        """Other rows of the mask, including padding, nearest first; and this row shifted by some columns."""
        if not self.has("mask"):
            return
        view, n_kv, here = self.view("mask"), self.case.op.sizes.n_kv, self.mask_start
        stride = view.nb[1] // 2
        starts = range(here % stride, (self.inputs[view.root].size - view.offset) // 2 - n_kv + 1, stride)
        most = min(8 * NEAR, WORK // (128 * n_kv))
        for start in sorted(starts, key=lambda start: abs(start - here))[: most + 1]:
            sequence, rest = divmod(start, view.nb[3] // 2)
            head, rest = divmod(rest, view.nb[2] // 2) if view.ne[2] > 1 else (0, rest)
            plane = f", head {head}" if view.ne[2] > 1 else ""
            if start != here and (entries := self.mask_entries(start, n_kv)) is not None:
                yield f"sequence {sequence}{plane}, row {rest // stride}", entries
        for columns in (sign * 2**power for sign in (1, -1) for power in range(9)):
            if (entries := self.mask_entries(here + columns, n_kv)) is not None:
                yield f"{abs(columns)} columns {'later' if columns > 0 else 'earlier'}", entries


@dataclass(frozen=True, eq=False)
class WrongRow:
    """A wrong row: its output `out`, the correct output `base`, and the data for the search.

    `step` is the number of KV rows in a KV step, 0 if unknown; `parts` is the work of the CUDA blocks that share the
    row's tile; `others` are the answers of other rows, which may have been written to this row. `unit` is the predicted
    error of an element; the kernel adds `max_offset` to the maximum of the logits; `wrong` marks the wrong columns.
    `scanned`: an earlier kernel has computed KV_max, the end of the visible KV rows.
    """

    row: AttentionRow
    around: Around
    out: F64
    base: F64
    wrong: Bools
    step: int = 0
    parts: Mapping[int, TileWork] = field(default_factory=dict)
    others: Sequence[Named] = ()
    unit: float = 0.0
    max_offset: float = 0.0
    scanned: bool = False

    @property
    def error(self) -> F64:
        """The error of each column."""
        return np.asarray(self.out - self.base)

    @cached_property
    def off(self) -> float:
        """The magnitude of the error."""
        return float(np.linalg.norm(self.error))

    @cached_property
    def rounding(self) -> float:
        """The largest error that the kernel's rounding can plausibly cause in this row."""
        own, size = float(ROUNDING * self.unit * len(self.out) ** 0.5), float(np.linalg.norm(self.out))
        return max(own * max(1.0, size / (float(np.linalg.norm(self.base)) or 1e-30)), 1e-6 * size)

    @cached_property
    def rows_that_count(self) -> int:
        """The number of KV rows that each change the output by more than rounding."""
        return int((self.row.p * np.linalg.norm(self.row.V, axis=1) > self.rounding).sum())

    @cached_property
    def constant(self) -> bool:
        """Whether all rows of V that count are the same: the output then shows only the sum of the weights."""
        V = self.row.V[self.row.p > 0]
        return len(V) > 1 and bool((V[0] == V).all())

    def affords(self, times: int) -> bool:
        """Whether a search can afford this many passes over K or V."""
        return times * max(self.row.K.size, self.row.V.size) <= WORK

    def explained(self, answer: F64, *, many: bool = False) -> bool:
        """Whether only rounding remains after subtracting an answer; `many`: the answer has many fitted values."""
        return float(np.linalg.norm(self.out - answer)) <= min(
            self.rounding, (LEFT_OF_MANY if many else LEFT) * self.off
        )

    @cached_property
    def steps(self) -> Indices:
        """The KV step of each KV row."""
        return np.arange(len(self.row.V)) // max(self.step, 1)

    def by_step(self, of: Floats) -> F64:
        """Sums over the rows of each KV step."""
        return np.asarray(np.add.reduceat(of, np.arange(0, len(of), self.step)), np.float64)

    @cached_property
    def shares(self) -> list[tuple[int, TileWork, Bools]]:
        """The CUDA blocks that process KV steps of the tile, and their KV rows; a launch may have more blocks."""
        return [(block, work, np.isin(self.steps, work.steps)) for block, work in self.parts.items() if work.steps]


@dataclass(frozen=True)
class Cause:
    """A fault: its `kind` (see `KINDS`), its `words`, and `detail`, the part of the words that differs from row to row.

    `explained` is a share of a row's squared error, None if it is not known; `step` is the KV step, if the fault is in
    one step. All rows must have the same `place`, and the same `factor` to within `doubt`, its standard error.
    """

    kind: str
    words: str
    detail: str
    explained: float | None = None
    step: int | None = None
    factor: float | None = None
    doubt: float = 0.0
    place: str = ""

    @property
    def name(self) -> tuple[str, str, str]:
        """The parts that are the same in all rows."""
        return self.kind, self.words, self.place

    def __str__(self) -> str:
        return f"{self.words} ({self.detail})" if self.detail else self.words


@dataclass(frozen=True)
class Candidate:
    """A cause that fits a row; the lowest score is the most likely."""

    cause: Cause
    score: float


@dataclass(frozen=True, eq=False)
class Moves:
    """Faults of one kind: the errors (n, hsv) that they predict; with `free`, any multiple of them.

    `say` gets the index of a fault and its factor, and returns None for a factor that makes no sense. `rarity` is the
    handicap of this kind relative to other kinds, in Schwarz' criterion.
    """

    errors: F64
    say: Callable[[int, float], Cause | None]
    free: bool = False
    rarity: float = 0.0

    @classmethod
    def to(cls, answers: Sequence[tuple[Cause, F64]], out: F64, rarity: float = 0.0) -> "Moves":
        """The moves from `out` to those answers that are finite and differ from it."""
        known = [(cause, answer) for cause, answer in answers if np.isfinite(answer).all()]
        errors = np.array([answer - out for _, answer in known]).reshape(-1, len(out))
        return cls(errors, lambda index, _: known[index][0], rarity=rarity)

    def nearest(self, error: F64) -> tuple[int, float, float]:
        """The index of the fault that is closest to an error, its factor, and the squared error that is left."""
        u, power = np.where(np.isfinite(self.errors), self.errors, 0.0), float(error @ error)
        if not self.free:
            left = ((u - error) ** 2).sum(axis=1)
            index = int(left.argmin())
            return index, 1.0, float(left[index])
        along, length = u @ error, (u**2).sum(axis=1)
        # Not along**2 / length, whose square can overflow float64.
        gain = along * np.divide(along, length, out=np.zeros_like(along), where=length > 0)
        index = int(gain.argmax())
        return (
            index,
            float(along[index] / length[index]) if length[index] else 0.0,
            max(power - float(gain[index]), 0.0),
        )


def fitting(error: F64, moves: Sequence[Moves], unit: float = 0.0) -> list[Candidate]:
    """The best fault of each kind that explains a row's error (hsv,), most likely first."""
    power, found = float(error @ error), list[Candidate]()
    rounding = (ROUNDING * unit) ** 2 * len(error)
    most = min(max((1 - EXPLAINED) * power, rounding), (1 - LEAST) * power)
    for one in moves if power else ():
        if not len(one.errors):
            continue
        index, factor, left = one.nearest(error)
        if left > most or (cause := one.say(index, factor)) is None:
            continue
        freedom = 2 * np.log(len(one.errors)) + (4 if one.free else 0) + one.rarity
        score = len(error) * np.log(max(left, rounding / ROUNDING**2, 1e-9 * power) / power) + freedom
        doubt = unit / (float(np.linalg.norm(one.errors[index])) or np.inf) if one.free else 0.0
        found.append(Candidate(replace(cause, explained=1 - left / power, doubt=doubt), float(score)))
    return sorted(found, key=lambda candidate: candidate.score)
