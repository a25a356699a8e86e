"""Run a study: all algorithms on one head of a case, with one of them shown in detail, and their results compared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from fattn_probe.base.activity import Step, quiet
from fattn_probe.base.arrays import F64
from fattn_probe.base.errors import ComparisonError, InputError
from fattn_probe.cases.op.values import view_values
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.lab.study import formulas
from fattn_probe.lab.study.formulas import Formula, FormulaSizes
from fattn_probe.lab.study.papers import (
    A100_SRAM,
    backward,
    block_sizes,
    flash_attention_1,
    flash_attention_2,
    flash_attention_3,
    split_kv,
    split_ranges,
    standard,
    standard_backward,
)
from fattn_probe.lab.study.precisions import errors
from fattn_probe.lab.study.problem import OpArrays, StudyHead, StudyResult
from fattn_probe.lab.study.schedules import Scheduled, schedule_head
from fattn_probe.lab.study.stream_k import StudyLaunch, divide, heads_of_tile, read_launch, stream_k
from fattn_probe.lab.study.warpgroups import Ring, Schedule
from fattn_probe.llama.launch.geometry import tile_rows
from fattn_probe.llama.launch.tiles import BlockPart, Tile
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

    @property
    def parts(self) -> tuple[BlockPart, ...]:
        """The work of the launch's blocks on this head's tiles."""
        return tuple((block, work) for block, work in self.launch.parts if self.covers(work.tile))


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
            return stream_k(subject.op, subject.launch, subject.parts)


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
            return formulas.stream_k(subject.launch, [work for _, work in subject.parts], planes)


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
    """The largest |found - expected| / scale, or / max(scale, |expected|); infinities can be equal, NaN never is."""
    with np.errstate(invalid="ignore"):
        gap = np.where(found == expected, 0.0, np.abs(found - expected))
        size = np.maximum(scale, np.abs(np.where(np.isinf(expected), 0.0, expected))) if relative else scale
    worst = gap / size
    return float("inf") if np.isnan(worst).any() else float(worst.max())


def reference(subject: Subject) -> F64:
    """The head's exact output from `fattn_probe.verdict.truth.reference`, (n_q, hsv)."""
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


MOST_SCORES = 1 << 25
TILE = 64
H200_SMS = 132


@dataclass(frozen=True)
class StudyOptions:
    """The head and its tiling. None means the default: 64 x 64, or from `memory` for FlashAttention-1."""

    head: int = 0
    sequence: int = 0
    tile_q: int | None = None
    tile_kv: int | None = None
    memory: int = A100_SRAM
    splits: int = 4
    blocks: int = H200_SMS
    inspected: Path | None = None
    backward: bool = False
    fp8: bool = False
    schedule: Schedule = "both"
    stages: int = 2
    ring: Ring = "apart"


@dataclass(frozen=True)
class Backward:
    """The backward pass of the head: traffic, and the differences of dQ, dK, dV relative to the largest of each."""

    reads: int
    writes: int
    formula: Formula
    differences: Mapping[str, float]

    @property
    def equal(self) -> bool:
        """Whether the gradients agree with those of the standard backward pass to 1e-12."""
        return max(self.differences.values()) <= TOLERANCE


@dataclass(frozen=True)
class Study:
    """All algorithms on one head of a case; `algorithm` is the one to show.

    `precisions` are the mean square errors of attention in f16 and FP8, by variant.
    """

    case: str
    algorithm: Algorithm
    options: StudyOptions
    subject: Subject
    results: Mapping[Algorithm, StudyResult]
    formulas: Mapping[Algorithm, Formula]
    agreement: Mapping[str, Agreement]
    backward: Backward | None = None
    scheduled: Scheduled | None = None
    precisions: Mapping[str, float] = field(default_factory=dict)

    @property
    def result(self) -> StudyResult:
        """The result of the algorithm to show."""
        return self.results[self.algorithm]

    def heads(self, algorithm: Algorithm) -> int:
        """The number of heads that the algorithm's traffic covers; a stream-K tile can have several."""
        if algorithm != "stream-k":
            return 1
        launch, (_, work) = self.subject.launch, self.subject.parts[0]
        _, heads = tile_rows(work.tile, launch.shape, launch.ncols1, launch.ncols2)
        return len(heads)


def study_case(case: Case, algorithm: Algorithm, options: StudyOptions, step: Step = quiet) -> Study:
    """Run all algorithms on a head of the case; InputError if the head does not exist or is too large."""
    problems, sizes = [], case.op.sizes
    if not 0 <= options.head < sizes.n_head:
        problems.append(f"--head {options.head}: {case.name} has heads 0 to {sizes.n_head - 1}")
    if not 0 <= options.sequence < sizes.n_seq:
        problems.append(f"--sequence {options.sequence}: {case.name} has sequences 0 to {sizes.n_seq - 1}")
    if sizes.n_q * sizes.n_kv > MOST_SCORES:
        problems.append(
            f"{case.name}: {sizes.n_q} x {sizes.n_kv} scores are too many to study; the limit is {MOST_SCORES},"
            " because standard attention stores them all"
        )
    if problems:
        raise InputError("\n".join(problems))
    op = op_of_case(case)
    B_r, B_c = options.tile_q or TILE, options.tile_kv or TILE
    by_memory = block_sizes(options.memory, op.shape.hsk, op.shape.hsv)
    tiling = StudyTiling(B_r, B_c, (options.tile_q or by_memory[0], options.tile_kv or by_memory[1]), options.splits)
    if options.inspected is not None:
        launch = read_launch(options.inspected, case.name, op.shape)
    else:  # tiles of as many rows (queries x heads) as the other algorithms use
        launch = divide(op.shape, max(1, B_r // heads_of_tile(op.shape.group)), B_c, options.blocks)
    subject = Subject(op, options.sequence, options.head, tiling, launch)
    head, results = subject.tensors, {name: run(name, subject) for name in ALGORITHMS}
    exact = results["standard"].out
    return Study(
        case.name,
        algorithm,
        options,
        subject,
        results,
        {name: formula(name, subject) for name in results},
        agreement(subject, results),
        backward_of(subject, results["fa2"]) if options.backward else None,
        schedule_head(head, B_r, B_c, schedule=options.schedule, stages=options.stages, ring=options.ring)
        if algorithm == "fa3"
        else None,
        errors(head, exact, B_r, B_c, step=step) if options.fp8 else {},
    )


def backward_of(subject: Subject, forward: StudyResult) -> Backward:
    """The gradients for a random dO, compared with those of the standard backward pass."""
    head, tiling = subject.tensors, subject.tiling
    dO = np.random.default_rng(0).standard_normal((head.n_q, head.hsv))
    found = backward(head, forward, dO, tiling.B_r, tiling.B_c)
    pairs = zip(("dQ", "dK", "dV"), standard_backward(head, dO), strict=True)
    differences = {name: difference(found.array(name), two, float(np.abs(two).max()) or 1.0) for name, two in pairs}
    counted = found.reads.total(), found.writes.total()
    return Backward(*counted, formulas.backward(FormulaSizes.of(head), tiling.B_c), differences)


def op_of_case(case: Case) -> OpArrays:
    """The case's tensors in float64, and its parameters rounded to float32, as the op stores them."""
    inputs = make_inputs(case)
    values = {name: view_values(view, inputs).astype(np.float64) for name, view in case.op.operands.items()}
    sinks = values["sinks"].ravel() if "sinks" in values else None
    return OpArrays(values["Q"], values["K"], values["V"], values.get("mask"), case.op.params.stored, sinks)


def problems(study: Study) -> list[str]:
    """The algorithms that differ by more than 1e-12, and those whose traffic differs from the formula."""
    found = [f"{name} differs from standard attention" for name, one in study.agreement.items() if not one.equal]
    for name, result in study.results.items():
        expected = study.formulas[name]
        if (result.reads_total, result.writes_total) != (expected.total_reads, expected.total_writes):
            found.append(f"the reads and writes of {name} differ from its formula")
    if study.scheduled and study.scheduled.broken:
        found.append("the schedule breaks the rules of its ring of buffers")
    if study.backward and not study.backward.equal:
        found.append("the gradients differ from those of the standard backward pass")
    return found


def raise_if_different(study: Study) -> None:
    """ComparisonError if there is a problem."""
    found = problems(study)
    if found:
        raise ComparisonError(f"{study.case}: " + "; ".join(found))
