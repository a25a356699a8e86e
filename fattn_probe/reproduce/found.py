"""What is known of a case before it is reproduced: by a run of it, or from its capture."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fattn_probe.activity import Step, quiet
from fattn_probe.arrays import F32, F64, Bytes
from fattn_probe.compare.judge.cases import JudgedCase, expected_of
from fattn_probe.compare.judge.checks import Checks
from fattn_probe.compare.judge.judgement import Judgement, judgement_of
from fattn_probe.compare.judge.limits import Limits, choose_limits
from fattn_probe.compare.judge.verdict import Status
from fattn_probe.device import Target
from fattn_probe.errors import InputError, LostError
from fattn_probe.launch.architecture import arch_number, is_nvcc_arch
from fattn_probe.op.gguf_file import read_gguf
from fattn_probe.run.capture import Capture, read_capture
from fattn_probe.run.provenance import versions
from fattn_probe.run.session import Session
from fattn_probe.scenario import Case
from fattn_probe.scenario.cases import Recording
from fattn_probe.truth.reference.adapter import fully_masked_of, reference_of

MOST_SHOWN = 5


@dataclass(frozen=True, eq=False)
class Found:
    """The right output of a case and its limits; and the judgement of an output, if there is one.

    `judgement` is None for a case that was not run. `provenance` says what ran where; `output` is what was computed.
    """

    reference: F64
    limits: Limits
    judgement: Judgement | None
    provenance: Mapping[str, str]
    output: F32 | None = None

    @property
    def fails(self) -> bool:
        """Whether the output is wrong, or the run ended without one."""
        return self.judgement is not None and fails(self.judgement)

    def worst(self) -> list[dict[str, Any]]:
        """The elements that are farthest from what is expected, one of a row: `at`, `found`, `expected`."""
        if self.output is None:
            return []
        with np.errstate(invalid="ignore"):
            off = np.nan_to_num(np.abs(self.output - self.limits.expected), nan=np.inf)
        rows = off.max(axis=3)
        chosen = np.argsort(-rows, axis=None, kind="stable")[:MOST_SHOWN]
        places = [
            (*place, int(off[place].argmax())) for place in zip(*np.unravel_index(chosen, rows.shape), strict=True)
        ]
        return [
            {
                "at": [int(index) for index in place],
                "found": float(self.output[place]),
                "expected": float(self.limits.expected[place]),
            }
            for place in places
        ]


def find(session: Session, case: Case, inputs: Mapping[str, Bytes], target: Target | None, step: Step = quiet) -> Found:
    """What a run on a target gives; without one, what the case's capture holds, or only what is expected."""
    if target is not None:
        return found_by_run(session, case, inputs, target, step)
    capture = capture_of(case)
    return not_run(session, case, inputs) if capture is None else found_in_capture(case, capture)


def found_by_run(
    session: Session, case: Case, inputs: Mapping[str, Bytes], target: Target, step: Step = quiet
) -> Found:
    """Run the case and judge its output, as `compare` does."""
    judged = JudgedCase(session, case, inputs, Checks(sample="all"), step)
    step(f"{case.name} on {target}: running")
    result = judged.capture(target, None)
    judgement = replace(judged.judged(result, target), digest=case.digest)
    if judgement.status in (Status.LOST, Status.UNSUPPORTED):
        error = LostError if judgement.status is Status.LOST else InputError
        raise error(f"{case.name} on {target}: {judgement.status}: {judgement.reason}")
    judgement = (
        replace(judgement, known=judged.known(judgement, result, target, None)) if fails(judgement) else judgement
    )
    reference, _ = judged.reference
    if not isinstance(result, Capture):
        limits = choose_limits(reference, case.tolerance)
        return Found(reference, limits, judgement, session.provenance(case, target))
    expected, passes = judged.expected(result, target), not fails(judgement)
    limits = choose_limits(reference, case.tolerance, expected, dst=result.dst, passes=passes)
    return Found(reference, limits, judgement, result.provenance, result.dst)


def fails(judgement: Judgement) -> bool:
    """Whether a judgement is a failure."""
    return judgement.status is Status.FAIL


def capture_of(case: Case) -> Capture | None:
    """The capture that a recorded case is from; None for a scenario's case, and for a file without an output."""
    if not isinstance(case.source, Recording) or "dst" not in read_gguf(case.source.path).tensors:
        return None
    return read_capture(case.source.path)


def found_in_capture(case: Case, capture: Capture) -> Found:
    """The judgement of a recorded output by its own launches."""
    reference, on = reference_of(case.op, capture.inputs, case.name), capture.provenance.get("device", capture.device)
    expected, arch = None, capture.provenance.get("arch", "")
    if capture.launches and is_nvcc_arch(arch):
        expected = expected_of(case, capture.inputs, capture, arch_number(arch), "auto")
    masked = fully_masked_of(case.op, capture.inputs)
    judgement = judgement_of(case, on, capture, reference, masked, expected=expected)
    judgement = replace(judgement, digest=case.digest)
    limits = choose_limits(reference, case.tolerance, expected, dst=capture.dst, passes=not fails(judgement))
    return Found(reference, limits, judgement, capture.provenance, capture.dst)


def not_run(session: Session, case: Case, inputs: Mapping[str, Bytes]) -> Found:
    """Only what is expected: without a kernel, the scenario's tolerance is the limit."""
    reference, tree = reference_of(case.op, inputs, case.name), session.options.tree
    source = {} if tree is None else {"source": tree.spec, "build_number": tree.build_number}
    return Found(reference, choose_limits(reference, case.tolerance), None, source | versions())
