"""Closed forms, from the papers, of the slow-memory elements that each algorithm reads and writes.

The symbols are those of the papers, but N and d are split: there are N_q queries and N_kv KV rows, and the head sizes
are d_k and d_v. T_r = ceil(N_q/B_r) and T_c = ceil(N_kv/B_c) are the numbers of tiles. The papers have no mask. Here
each algorithm reads every element of the mask once: N_q N_kv.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fattn_probe.lab.study.problem import StudyHead, count
from fattn_probe.lab.study.stream_k import StudyLaunch
from fattn_probe.llama.launch.tiles import TileWork


@dataclass(frozen=True)
class FormulaTerm:
    """One term: the arrays it covers, its formula, and its value in elements."""

    of: str
    formula: str
    value: int


@dataclass(frozen=True)
class Formula:
    """Reads and writes of one algorithm, and their asymptotic order from the paper."""

    reads: tuple[FormulaTerm, ...]
    writes: tuple[FormulaTerm, ...]
    order: str

    @property
    def total_reads(self) -> int:
        """The sum of the reads."""
        return sum(term.value for term in self.reads)

    @property
    def total_writes(self) -> int:
        """The sum of the writes."""
        return sum(term.value for term in self.writes)


@dataclass(frozen=True)
class FormulaSizes:
    """N_q, N_kv, d_k, d_v, and whether there is a mask."""

    N_q: int
    N_kv: int
    d_k: int
    d_v: int
    masked: bool

    @classmethod
    def of(cls, head: StudyHead) -> "FormulaSizes":
        """The sizes of a head."""
        return cls(head.n_q, head.n_kv, head.hsk, head.hsv, head.mask is not None)

    @property
    def d(self) -> int:
        """d_k + d_v: the size of a row of K and its row of V."""
        return self.d_k + self.d_v

    @property
    def scores(self) -> int:
        """Elements of S."""
        return self.N_q * self.N_kv

    def mask(self) -> tuple[FormulaTerm, ...]:
        """The mask's share of the reads."""
        return (FormulaTerm("mask", "N_q N_kv", self.scores),) if self.masked else ()


def standard(s: FormulaSizes) -> Formula:
    """Algorithm 0 of FlashAttention; Theta(N d + N^2) by its theorem 2."""
    reads = (
        FormulaTerm("Q", "N_q d_k", s.N_q * s.d_k),
        FormulaTerm("K, V", "N_kv (d_k + d_v)", s.N_kv * s.d),
        FormulaTerm("S, P", "2 N_q N_kv", 2 * s.scores),
        *s.mask(),
    )
    return Formula(reads, (FormulaTerm("S, P", "2 N_q N_kv", 2 * s.scores), _output(s)), "Θ(N d + N²)")


def flash_attention_1(s: FormulaSizes, B_c: int) -> Formula:
    """Algorithm 1 of FlashAttention: every K/V tile visits Q, O, l and m; Theta(N^2 d^2 / M) by its theorem 2."""
    T_c = count(s.N_kv, B_c)
    state = s.N_q * (s.d_v + 2)
    reads = (
        FormulaTerm("K, V", "N_kv (d_k + d_v)", s.N_kv * s.d),
        FormulaTerm("Q", "T_c N_q d_k", T_c * s.N_q * s.d_k),
        FormulaTerm("O, l, m", "T_c N_q (d_v + 2)", T_c * state),
        *s.mask(),
    )
    writes = (
        FormulaTerm("O, l, m at the start", "N_q (d_v + 2)", state),
        FormulaTerm("O, l, m", "T_c N_q (d_v + 2)", T_c * state),
    )
    return Formula(reads, writes, "Θ(N² d² / M)")


def flash_attention_2(s: FormulaSizes, B_r: int) -> Formula:
    """Algorithm 1 of FlashAttention-2, and FlashAttention-3: each tile of queries reads all of K and V."""
    T_r = count(s.N_q, B_r)
    reads = (
        FormulaTerm("Q", "N_q d_k", s.N_q * s.d_k),
        FormulaTerm("K, V", "T_r N_kv (d_k + d_v)", T_r * s.N_kv * s.d),
        *s.mask(),
    )
    return Formula(reads, (_output(s),), "Θ(N² d / B_r)")


def split_kv(s: FormulaSizes, B_r: int, splits: int) -> Formula:
    """FlashDecoding: FlashAttention-2 with Q read and O, L written once per split, plus the combine step."""
    T_r, parts = count(s.N_q, B_r), splits * s.N_q * (s.d_v + 1)
    reads = (
        FormulaTerm("Q", "s N_q d_k", splits * s.N_q * s.d_k),
        FormulaTerm("K, V", "T_r N_kv (d_k + d_v)", T_r * s.N_kv * s.d),
        *s.mask(),
        FormulaTerm("O, L of splits", "s N_q (d_v + 1)", parts),
    )
    return Formula(
        reads, (FormulaTerm("O, L of splits", "s N_q (d_v + 1)", parts), _output(s)), "Θ(N² d / B_r + s N d)"
    )


def stream_k(launch: StudyLaunch, works: Sequence[TileWork], mask_planes: int) -> Formula:
    """Stream-K: FlashAttention-2 in parts; R rows (queries x heads) in all parts, F of them in parts at a seam.

    `mask_planes` is 0 without a mask, 1 if all heads of a tile read the same plane, 2 if each has its own. An undivided
    tile writes O only. A divided tile is written in parts with m and l, read by the fixup, and written again.
    """
    d_k, d_v = launch.shape.hsk, launch.shape.hsv
    sizes = ([rows.stop - rows.start for rows in launch.rows(work)] for work in works)
    heads, queries, kv = zip(*sizes, strict=True)
    rows = [n * m for n, m in zip(heads, queries, strict=True)]
    seamed = [n for n, work in zip(rows, works, strict=True) if work.needs_fixup or work.is_fixup]
    joined = [n for n, work in zip(rows, works, strict=True) if work.needs_fixup]
    reads = [
        FormulaTerm("Q", "R d_k", sum(rows) * d_k),
        FormulaTerm("K, V", "Σ N_kv (d_k + d_v)", sum(kv) * (d_k + d_v)),
    ]
    if mask_planes:
        across = queries if mask_planes == 1 else rows
        reads.append(FormulaTerm("mask", "Σ N_q N_kv", sum(n * m for n, m in zip(across, kv, strict=True))))
    reads.append(FormulaTerm("parts, by the fixup", "F (d_v + 2)", sum(seamed) * (d_v + 2)))
    writes = (
        FormulaTerm("O of tiles and parts", "R d_v", sum(rows) * d_v),
        FormulaTerm("m, l of parts", "2 F", 2 * sum(seamed)),
        FormulaTerm("O, by the fixup", "N_q d_v", sum(joined) * d_v),
    )
    return Formula(tuple(reads), writes, "Θ(N² d / (ncols1 ncols2)) per head")


def backward(s: FormulaSizes, B_c: int) -> Formula:
    """Algorithm 2 of FlashAttention-2; Theta(N^2 d^2 / M) by theorem 5 of FlashAttention."""
    T_c = count(s.N_kv, B_c)
    reads = (
        FormulaTerm("dO, O for D", "2 N_q d_v", 2 * s.N_q * s.d_v),
        FormulaTerm("K, V", "N_kv (d_k + d_v)", s.N_kv * s.d),
        FormulaTerm("Q, dO, L, D", "T_c N_q (d_k + d_v + 2)", T_c * s.N_q * (s.d + 2)),
        FormulaTerm("dQ", "T_c N_q d_k", T_c * s.N_q * s.d_k),
        *s.mask(),
    )
    writes = (
        FormulaTerm("D, dQ at the start", "N_q (d_k + 1)", s.N_q * (s.d_k + 1)),
        FormulaTerm("dQ", "T_c N_q d_k", T_c * s.N_q * s.d_k),
        FormulaTerm("dK, dV", "N_kv (d_k + d_v)", s.N_kv * s.d),
    )
    return Formula(reads, writes, "Θ(N² d² / M)")


def _output(s: FormulaSizes) -> FormulaTerm:
    return FormulaTerm("O, L", "N_q (d_v + 1)", s.N_q * (s.d_v + 1))
