"""The algorithms by name; runs all of them on the same head and compares the results."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fattn_probe.base.arrays import F64
from fattn_probe.lab.study import formulas
from fattn_probe.lab.study.formulas import Formula, FormulaSizes
from fattn_probe.lab.study.papers import (
    flash_attention_1,
    flash_attention_2,
    flash_attention_3,
    split_kv,
    split_ranges,
    standard,
)
from fattn_probe.lab.study.problem import (
    OpArrays,
    StudyHead,
    StudyResult,
)
from fattn_probe.lab.study.stream_k import StudyLaunch, StudyPiece, pieces_of, stream_k
from fattn_probe.llama.launch.tiles import Tile
from fattn_probe.verdict.truth.reference.attention import attention

Algorithm = Literal["standard", "fa1", "fa2", "fa3", "split-kv", "stream-k"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
TOLERANCE = 1e-12


@dataclass(frozen=True)
class StudyTiling:
    """Tile sizes: B_r queries by B_c KV rows. `fa1`: those of FlashAttention-1; `splits`: the pieces of split-KV."""

    B_r: int
    B_c: int
    fa1: tuple[int, int]
    splits: int


@dataclass(frozen=True)
class Subject:
    """The head under study. `launch` divides the whole op for stream-K; only the tiles of this head are computed."""

    op: OpArrays
    sequence: int
    head: int
    tiling: StudyTiling
    launch: StudyLaunch

    @property
    def tensors(self) -> StudyHead:
        """The head's own tensors."""
        return self.op.head(self.sequence, self.head)

    def covers(self, tile: Tile) -> bool:
        """Whether an output tile of the launch contains this head."""
        sequence, z_KV, zt_gqa, _ = tile
        kv_head, place = divmod(self.head, self.op.shape.group)
        return (sequence, z_KV, zt_gqa) == (self.sequence, kv_head, place // self.launch.ncols2)

    def pieces(self) -> tuple[StudyPiece, ...]:
        """The parts of this head's tiles that the launch's blocks compute."""
        return tuple(piece for piece in pieces_of(self.launch, self.op.shape) if self.covers(piece.work.tile))


def run(name: Algorithm, subject: Subject) -> StudyResult:
    """Run one algorithm on the head; the result of stream-K has all heads of the op."""
    head, tiling = subject.tensors, subject.tiling
    match name:
        case "standard":
            return standard(head, tiling.B_r)
        case "fa1":
            return flash_attention_1(head, *tiling.fa1)
        case "fa2":
            return flash_attention_2(head, tiling.B_r, tiling.B_c)
        case "fa3":
            return flash_attention_3(head, tiling.B_r, tiling.B_c)
        case "split-kv":
            return split_kv(head, tiling.B_r, tiling.B_c, tiling.splits)
        case "stream-k":
            return stream_k(subject.op, subject.launch, subject.covers)


def run_all(subject: Subject) -> dict[Algorithm, StudyResult]:
    """Run all algorithms on the same head."""
    return {name: run(name, subject) for name in ALGORITHMS}


def formula(name: Algorithm, subject: Subject) -> Formula:
    """The closed form of the algorithm's reads and writes."""
    head, tiling = subject.tensors, subject.tiling
    sizes = FormulaSizes.of(head)
    match name:
        case "standard":
            return formulas.standard(sizes)
        case "fa1":
            return formulas.flash_attention_1(sizes, tiling.fa1[1])
        case "fa2" | "fa3":
            return formulas.flash_attention_2(sizes, tiling.B_r)
        case "split-kv":
            return formulas.split_kv(sizes, tiling.B_r, len(split_ranges(head.n_kv, tiling.B_c, tiling.splits)))
        case "stream-k":
            planes = 0 if subject.op.mask is None else min(2, subject.op.mask.shape[1])
            return formulas.stream_k(subject.pieces(), head.hsk, head.hsv, planes)


def of_head(result: StudyResult, subject: Subject) -> tuple[F64, F64]:
    """Output and log-sum-exp of the head under study, from a result of one head or of all heads."""
    if result.out.ndim == 2:
        return result.out, result.lse
    return result.out[subject.sequence, subject.head], result.lse[subject.sequence, subject.head]


@dataclass(frozen=True)
class Agreement:
    """The largest differences from standard attention: `out` relative to the largest |V|, `lse` to max(1, |L|)."""

    out: float
    lse: float | None

    @property
    def equal(self) -> bool:
        """Whether both are at most 1e-12."""
        return self.out <= TOLERANCE and (self.lse is None or self.lse <= TOLERANCE)


def agreement(subject: Subject, results: Mapping[Algorithm, StudyResult]) -> dict[str, Agreement]:
    """The difference of each result, and of the reference that `compare` uses, from standard attention."""
    base_out, base_lse = of_head(results["standard"], subject)
    scale = float(np.abs(subject.tensors.V).max()) or 1.0
    found: dict[str, Agreement] = {}
    for name, result in results.items():
        out, lse = of_head(result, subject)
        found[name] = Agreement(difference(out, base_out, scale), difference(lse, base_lse, 1.0, relative=True))
    found["reference"] = Agreement(difference(reference(subject), base_out, scale), None)
    return found


def difference(found: F64, expected: F64, scale: float, *, relative: bool = False) -> float:
    """The largest |found - expected| / scale, or / max(scale, |expected|); equal infinities are equal, NaN never is."""
    with np.errstate(invalid="ignore"):
        gap = np.where(found == expected, 0.0, np.abs(found - expected))
        size = np.maximum(scale, np.abs(np.where(np.isinf(expected), 0.0, expected))) if relative else scale
    worst = gap / size
    return float("inf") if np.isnan(worst).any() else float(worst.max())


def reference(subject: Subject) -> F64:
    """The head's exact output by `fattn_probe.verdict.truth.reference`, (n_q, hsv)."""
    op, s, h = subject.op, subject.sequence, subject.head
    kv = slice(h // op.shape.group, h // op.shape.group + 1)
    head, rule = op.head(s, h), op.head(s, h).rule
    mask = None if head.mask is None else (rule.slope * head.mask)[None, None]
    params = type(op.params)(op.params.scale, 0.0, op.params.logit_softcap)
    sinks = None if op.sinks is None else op.sinks[h : h + 1]
    out = attention(
        op.Q[s : s + 1, h : h + 1], op.K[s : s + 1, kv], op.V[s : s + 1, kv], mask, params=params, sinks=sinks
    )
    return out[0, :, 0]
