"""Run cases on targets, and judge each output by the exact reference and by what is expected of its kernel."""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fattn_probe.compare.bitwise import Alone, Check, batch_invariance, beside, chosen_queries, repeated, slice_of
from fattn_probe.compare.command import Row, attention_kernel, row_of
from fattn_probe.compare.diagnosis import Evidence, diagnose
from fattn_probe.compare.expected import Expected
from fattn_probe.compare.geometry import geometry_of
from fattn_probe.compare.metrics import F32
from fattn_probe.compare.outcome import verdict_without_output
from fattn_probe.compare.verdict import Status
from fattn_probe.device import Target
from fattn_probe.error_model import predict
from fattn_probe.model import model_of
from fattn_probe.model.constants import SHIPPED, Constants, constants_of
from fattn_probe.reference.adapter import fully_masked_of, reference_of
from fattn_probe.run.capture import Capture
from fattn_probe.run.command import Work
from fattn_probe.run.outcome import Ran
from fattn_probe.run.session import Session, arch_of
from fattn_probe.scenario import Case, make_inputs, view_values
from fattn_probe.source import Tree

Bytes = npt.NDArray[np.uint8]
UseModel = Literal["auto", "always", "never"]
MODEL_FLOP = 4e9
"""Operations of a case from which the rounding-faithful model takes too long, unless it is asked for."""
MOST_BYTES = 2 << 30
"""Operands above this size, in float64, are not read as a whole for a prediction."""


@dataclass(frozen=True)
class CompareOptions:
    """What is done besides running each case once and holding it against the reference.

    `model` says when the rounding-faithful model is computed; `repeat` runs of each case must have the same bits;
    `batch_invariance` is the number of queries that are computed alone as well.
    """

    model: UseModel = "auto"
    repeat: int = 1
    batch_invariance: int = 0


def compare_work(session: Session, work: Work, options: CompareOptions | None = None) -> Iterator[Row]:
    """A row for each case and target, as soon as it is known."""
    with session.keeping():
        yield from _rows(session, work, options or CompareOptions())


def _rows(session: Session, work: Work, options: CompareOptions) -> Iterator[Row]:
    for case, targets in work:
        job = _Job(session, case, make_inputs(case), options)
        reference, masked = reference_of(case, job.inputs), fully_masked_of(case, job.inputs)
        for target in targets:
            result = session.capture(case, job.inputs, target)
            if isinstance(result, Capture):
                expected = job.expected(result, target)
                row = row_of(case, str(target), result, reference, masked, expected=expected)
                yield dataclasses.replace(job.diagnosed(row, result, target), checks=tuple(job.checks(result, target)))
            elif not isinstance(result, Ran):
                yield row_of(case, str(target), verdict_without_output(result), reference)


@dataclass(frozen=True)
class _Job:
    """One case with its inputs."""

    session: Session
    case: Case
    inputs: dict[str, Bytes]
    options: CompareOptions

    def expected(self, capture: Capture, target: Target) -> Expected:
        """What the kernels that ran should have computed."""
        if not capture.launches:
            return Expected(missing="ggml's CPU backend has no error model: the scenario's tolerance decides")
        constants = known_constants(self.session.options.tree)
        arch = arch_number(target)
        return expected_of(self.case, self.inputs, capture, arch, self.options.model, constants=constants)

    def diagnosed(self, row: Row, capture: Capture, target: Target) -> Row:
        """The row with a diagnosis, if its output is wrong."""
        deviation = row.verdict.deviation
        if row.verdict.status is not Status.FAIL or deviation is None:
            return row
        arch = arch_number(target) if capture.launches else 0
        geometry = geometry_of(self.case, capture.launches, arch)
        evidence = Evidence(self.case, self.inputs, capture.dst, deviation, geometry)
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
        for query in chosen_queries(self.case.n_q, self.options.batch_invariance):
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
) -> Expected:
    """What the launches of a run make one expect; says what is missing and why.

    `constants` are those of the source that was run, which the model needs; None if they are not known.
    """
    memory = dict(inputs)
    size = sum(8 * int(np.prod(view.ne)) for view in case.tensors.values())
    if size > MOST_BYTES:
        return Expected(missing="no prediction for a case of this size: the scenario's tolerance decides")
    values = {name: view_values(case, memory, name) for name in case.tensors}
    prediction = predict(case, values, capture.launches, arch)
    if prediction is None:
        return Expected(missing="no error model of this kernel: the scenario's tolerance decides")
    if model == "never" or (model == "auto" and case.flop > MODEL_FLOP):
        return Expected(prediction, missing="the model of the kernel's rounding was left out (--model always)")
    if constants is None:
        return Expected(prediction, missing="the configurations of this source's kernels are not known to the model")
    found: F32 | None = model_of(case, memory, capture.launches, arch, constants=constants)
    return Expected(prediction, found, "" if found is not None else "there is no model of this kernel's rounding")


def arch_number(target: Target) -> int:
    """nvcc's number of a target's architecture: 90, and 120 for `120a`."""
    digits = re.match(r"\d+", arch_of(target))
    return int(digits[0]) if digits else 0
