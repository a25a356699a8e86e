"""Run a study: all algorithms on one head of a case, with one of them shown in detail."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fattn_probe.base.activity import Step, quiet
from fattn_probe.base.errors import ComparisonError, InputError
from fattn_probe.cases.op.values import view_values
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.lab.study.algorithms import (
    TOLERANCE,
    Agreement,
    Algorithm,
    StudyTiling,
    Subject,
    agreement,
    difference,
    formula,
    run_all,
)
from fattn_probe.lab.study.formulas import Formula, FormulaSizes
from fattn_probe.lab.study.formulas import backward as backward_formula
from fattn_probe.lab.study.papers import A100_SRAM, backward, block_sizes, standard_backward
from fattn_probe.lab.study.precisions import Rounded, errors
from fattn_probe.lab.study.problem import OpArrays, StudyResult, op_arrays
from fattn_probe.lab.study.schedules import Scheduled, schedule_head
from fattn_probe.lab.study.stream_k import divide, heads_of_tile, read_launch
from fattn_probe.lab.study.warpgroups import Ring, Schedule

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
        """Whether the gradients equal those of the standard backward pass to 1e-12."""
        return max(self.differences.values()) <= TOLERANCE


@dataclass(frozen=True)
class Study:
    """All algorithms on one head of a case; `algorithm` is the one to show."""

    case: str
    algorithm: Algorithm
    options: StudyOptions
    subject: Subject
    results: Mapping[Algorithm, StudyResult]
    formulas: Mapping[Algorithm, Formula]
    agreement: Mapping[str, Agreement]
    backward: Backward | None = None
    scheduled: Scheduled | None = None
    precisions: tuple[Rounded, ...] = ()

    @property
    def result(self) -> StudyResult:
        """The result of the algorithm to show."""
        return self.results[self.algorithm]

    def heads(self, algorithm: Algorithm) -> int:
        """The number of heads that the algorithm's traffic covers; a stream-K tile can have several."""
        pieces = self.subject.pieces()
        return pieces[0].heads.stop - pieces[0].heads.start if algorithm == "stream-k" else 1


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
    head, results = subject.tensors, run_all(subject)
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
        errors(head, exact, B_r, B_c, step=step) if options.fp8 else (),
    )


def backward_of(subject: Subject, forward: StudyResult) -> Backward:
    """The gradients for a random dO, compared with those of the standard backward pass."""
    head, tiling = subject.tensors, subject.tiling
    dO = np.random.default_rng(0).standard_normal((head.n_q, head.hsv))
    found = backward(head, forward, dO, tiling.B_r, tiling.B_c)
    pairs = zip(("dQ", "dK", "dV"), standard_backward(head, dO), strict=True)
    differences = {name: difference(found.array(name), two, float(np.abs(two).max()) or 1.0) for name, two in pairs}
    counted = found.reads.total(), found.writes.total()
    return Backward(*counted, backward_formula(FormulaSizes.of(head), tiling.B_c), differences)


def op_of_case(case: Case) -> OpArrays:
    """The case's tensors in float64, and its parameters rounded to float32, as the op stores them."""
    inputs = make_inputs(case)
    values = {name: view_values(view, inputs) for name, view in case.op.operands.items()}
    sinks = values["sinks"].ravel() if "sinks" in values else None
    return op_arrays(
        values["Q"], values["K"], values["V"], values.get("mask"), params=case.op.params.stored, sinks=sinks
    )


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
