"""Run cases on targets, and judge each output by the exact reference and by what is expected of its kernel."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fattn_probe.arrays import F32, F64, I64, Bools, Bytes
from fattn_probe.compare.diagnose.diagnosis import Evidence, diagnose
from fattn_probe.compare.judge.bitwise import Alone, Check, batch_invariance, beside, chosen_queries, repeated, slice_of
from fattn_probe.compare.judge.expected import Expected
from fattn_probe.compare.judge.judgement import Row, attention_kernel, row_of, row_without_output, sampled_row
from fattn_probe.compare.judge.outcome import verdict_without_output
from fattn_probe.compare.judge.sampled import judge_sample
from fattn_probe.compare.judge.sampled import rows_of as sampled_rows
from fattn_probe.compare.judge.verdict import Status
from fattn_probe.device import Target
from fattn_probe.launch.architecture import arch_number
from fattn_probe.launch.constants import SHIPPED, Constants, constants_of
from fattn_probe.launch.geometry import Geometry, geometry_of
from fattn_probe.run.capture import Capture
from fattn_probe.run.casefile import inputs_of
from fattn_probe.run.command import Work
from fattn_probe.run.outcome import Ran
from fattn_probe.run.session import Session, arch_of
from fattn_probe.scenario import Case
from fattn_probe.source import Tree
from fattn_probe.truth.error_model import predict
from fattn_probe.truth.reference.adapter import check_output, fully_masked_of, reference_of, stored_rows
from fattn_probe.truth.reference.sampled import sample
from fattn_probe.truth.rounding_model import by_row, model_of

UseModel = Literal["auto", "always", "never"]
WHOLE_FLOP = 1e12
"""Operations of a case from which a sample of its rows is judged: ten seconds of two cores."""
WHOLE_BYTES = 4 << 30
"""Bytes of its inputs from which it is."""
MODEL_FLOP = 4e9
"""Operations of a case from which the rounding-faithful model takes too long, unless it is asked for."""


@dataclass(frozen=True)
class CompareOptions:
    """What is done besides running each case once and holding it against the reference.

    `model` says when the rounding-faithful model is computed; `repeat` runs of each case must have the same bits;
    `batch_invariance` is the number of queries that are computed alone as well; `sample` says of which rows the exact
    answer is sought: `all`, about so many and those that must be, or `auto`: all of a case that is not too large.
    """

    model: UseModel = "auto"
    repeat: int = 1
    batch_invariance: int = 0
    sample: int | Literal["auto", "all"] = "auto"

    def samples(self, case: Case) -> bool:
        """Whether a case is judged by a sample of its rows."""
        large = case.op.sizes.flop > WHOLE_FLOP or sum(root.nbytes for root in case.op.roots.values()) > WHOLE_BYTES
        return large if self.sample == "auto" else self.sample != "all"


def compare_work(session: Session, work: Work, options: CompareOptions | None = None) -> Iterator[Row]:
    """A row for each case and target, as soon as it is known."""
    with session.persistent_runner():
        yield from _rows(session, work, options or CompareOptions())


def _rows(session: Session, work: Work, options: CompareOptions) -> Iterator[Row]:
    for case, targets in work:
        with inputs_of(case) as inputs:
            job = _Job(session, case, inputs, options)
            yield from job.rows(targets)


@dataclass(frozen=True)
class _Job:
    """One case with its inputs."""

    session: Session
    case: Case
    inputs: Mapping[str, Bytes]
    options: CompareOptions

    def rows(self, targets: Sequence[Target]) -> Iterator[Row]:
        """A row for each target."""
        if self.options.samples(self.case):
            judged: Callable[[Capture, Target], Row] = self.sampled
        else:
            judged = self.whole
        for target in targets:
            result = self.session.capture(self.case, self.inputs, target)
            if isinstance(result, Capture):
                check_output(self.case.op, result.dst, self.case.name)
                yield dataclasses.replace(judged(result, target), checks=tuple(self.checks(result, target)))
            elif not isinstance(result, Ran):
                yield row_without_output(self.case, str(target), verdict_without_output(result))

    @functools.cached_property
    def reference(self) -> tuple[F64, Bools | None]:
        """The exact answer, and which rows are fully masked."""
        op = self.case.op
        return reference_of(op, self.inputs, self.case.name), fully_masked_of(op, self.inputs)

    def whole(self, capture: Capture, target: Target) -> Row:
        """Judge all of an output."""
        reference, masked = self.reference
        expected = self.expected(capture, target)
        row = row_of(self.case, str(target), capture, reference, masked, expected=expected)
        return self.diagnosed(row, capture, target)

    def sampled(self, capture: Capture, target: Target) -> Row:
        """Judge a sample of an output's rows, and whether the others may be right."""
        case, asked = self.case, self.options.sample
        geometry = self.geometry(capture, target)
        rows = sampled_rows(case, geometry, asked if isinstance(asked, int) else None)
        found = sample(case, rows, {name: stored_rows(view, self.inputs) for name, view in case.op.tensors.items()})
        expected = self.expected(capture, target, rows)
        verdict = judge_sample(case, capture.dst, found, expected)
        row = sampled_row(case, str(target), capture, found, expected=expected, verdict=verdict)
        if verdict.deviation is None or not verdict.deviation.wrong.any():
            return row
        dst = found.of(capture.dst)[None, :, None]
        evidence = Evidence(case, self.inputs, dst, verdict.deviation, geometry, rows)
        return dataclasses.replace(row, diagnosis=diagnose(evidence))

    def geometry(self, capture: Capture, target: Target) -> Geometry | None:
        """How the launches cut the output."""
        if not capture.launches:
            return None
        constants = known_constants(self.session.options.tree) or SHIPPED
        return geometry_of(self.case.op, capture.launches, arch_number(arch_of(target)), constants)

    def expected(self, capture: Capture, target: Target, rows: I64 | None = None) -> Expected:
        """What the kernels that ran should have computed, of some rows or of all."""
        if not capture.launches:
            return Expected(missing="ggml's CPU backend has no error model: the scenario's tolerance decides")
        constants = known_constants(self.session.options.tree)
        arch = arch_number(arch_of(target))
        return expected_of(self.case, self.inputs, capture, arch, self.options.model, constants=constants, rows=rows)

    def diagnosed(self, row: Row, capture: Capture, target: Target) -> Row:
        """The row with a diagnosis, if its output is wrong."""
        deviation = row.verdict.deviation
        if row.verdict.status is not Status.FAIL or deviation is None:
            return row
        evidence = Evidence(self.case, self.inputs, capture.dst, deviation, self.geometry(capture, target))
        return dataclasses.replace(row, diagnosis=diagnose(evidence))

    def checks(self, capture: Capture, target: Target) -> Iterator[Check]:
        """The bitwise checks that are asked for."""
        if self.options.repeat > 1:
            yield self._repeated(capture, target)
        if self.options.batch_invariance:
            yield self._batch_invariance(capture, target)

    def _repeated(self, capture: Capture, target: Target) -> Check:
        """Run again; on a simulator with another order of warps each time, since that is what differs on a GPU."""
        others = []
        for number in range(1, self.options.repeat):
            simulation = dataclasses.replace(self.session.options.simulation, schedule=number)
            options = dataclasses.replace(self.session.options, simulation=simulation)
            again = dataclasses.replace(self.session, options=options)
            found = again.capture(self.case, self.inputs, target)
            if not isinstance(found, Capture):
                return Check(
                    "deterministic", False, True, f"run {number + 1} did not end: {type(found).__name__.lower()}"
                )
            others.append(found.dst)
        return repeated(capture.dst, others, " with different orders of warps" if target.engine == "sim" else "")

    def _batch_invariance(self, capture: Capture, target: Target) -> Check:
        alone: list[Alone] = []
        for query in chosen_queries(self.case.op.sizes.n_q, self.options.batch_invariance):
            single, inputs = slice_of(self.case, self.inputs, query)
            found = self.session.capture(single, inputs, target)
            if isinstance(found, Capture):
                kernels = tuple(launch.spelling for launch in found.launches)
                alone.append(beside(query, found.dst, capture.dst, kernels))
        names = {row.query: attention_kernel(row.kernels) or "the CPU" for row in alone}
        batch = attention_kernel(launch.spelling for launch in capture.launches) or "the CPU"
        return batch_invariance(alone, batch, names)


@functools.cache
def known_constants(tree: Tree | None) -> Constants | None:
    """The step sizes and offsets of a source's kernels; None where they cannot be read: other kernels, or no source."""
    try:
        return constants_of(tree) if tree is not None else None
    except (OSError, KeyError, ValueError):
        return None


def expected_of(
    case: Case,
    inputs: Mapping[str, Bytes],
    capture: Capture,
    arch: int,
    model: UseModel,
    *,
    constants: Constants | None = SHIPPED,
    rows: I64 | None = None,
) -> Expected:
    """What the launches of a run make one expect; says what is missing and why.

    `constants` are those of the source that was run, which the model needs; None if they are not known. With `rows`
    (sequence, query, head), what is expected of these: (1, rows, 1, hsv).
    """
    values = {name: stored_rows(view, inputs) for name, view in case.op.tensors.items()}
    among = None if rows is None else np.unique(rows[:, 1])
    prediction = predict(case.op, values, capture.launches, arch, constants=constants or SHIPPED, among=among)
    if prediction is None:
        return Expected(missing="no error model of this kernel: the scenario's tolerance decides")
    prediction = prediction if rows is None else prediction.at(rows)
    if model == "never" or (model == "auto" and _model_flop(case, capture, arch, constants, rows) > MODEL_FLOP):
        return Expected(prediction, missing="the model of the kernel's rounding was left out (--model always)")
    if constants is None:
        return Expected(prediction, missing="the configurations of this source's kernels are not known to the model")
    found = _model(case, inputs, capture, arch, constants=constants, rows=rows)
    return Expected(prediction, found, "" if found is not None else "there is no model of this kernel's rounding")


def _model_flop(case: Case, capture: Capture, arch: int, constants: Constants | None, rows: I64 | None) -> float:
    """Operations that the rounding-faithful model has to do, beside converting K and V."""
    if rows is None or constants is None or not by_row(capture.launches, arch, constants):
        return case.op.sizes.flop
    return case.op.sizes.flop / (case.op.sizes.n_seq * case.op.sizes.n_q * case.op.sizes.n_head) * len(rows)


def _model(
    case: Case, inputs: Mapping[str, Bytes], capture: Capture, arch: int, *, constants: Constants, rows: I64 | None
) -> F32 | None:
    """What the model computes, of some rows or of all."""
    wanted, at = None, () if rows is None else tuple(rows.T)
    if rows is not None:
        wanted = np.zeros((case.op.sizes.n_seq, case.op.sizes.n_q, case.op.sizes.n_head), np.bool_)
        wanted[at] = True
    found = model_of(case, dict(inputs), capture.launches, arch, constants=constants, wanted=wanted)
    return found if found is None or rows is None else found[at][None, :, None]
