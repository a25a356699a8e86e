"""Compute the expected output of a run: the error model's prediction, and the rounding model's output."""

from collections.abc import Mapping
from functools import cache, partial

import numpy as np

from fattn_probe.base.arrays import I64, Bytes
from fattn_probe.cases.op import Op
from fattn_probe.cases.scenario import Case
from fattn_probe.llama.launch.architecture import AMD
from fattn_probe.llama.launch.constants import Constants
from fattn_probe.llama.launch.families import MMA_F16
from fattn_probe.llama.launch.geometry import Geometry
from fattn_probe.llama.launch.kernel import AttentionKernel
from fattn_probe.verdict.judge.checks import UseModel
from fattn_probe.verdict.measure.expected import DECIDES, Expected, with_gaps
from fattn_probe.verdict.truth.error_model.kernel import Kernel, kernel_of
from fattn_probe.verdict.truth.error_model.predict import predict, predict_rows
from fattn_probe.verdict.truth.error_model.prediction import Prediction
from fattn_probe.verdict.truth.reference.adapter import operand_values
from fattn_probe.verdict.truth.rounding_model.dispatch import model_of
from fattn_probe.verdict.truth.rounding_model.functions import MEASURED_ARCHS

MODEL_FLOP = 4e9
"""With more operations, `auto` skips the rounding model, because it takes too long."""


def bit_exact(provenance: Mapping[str, str], arch: int) -> bool:
    """Whether a correct kernel of a build usually matches the rounding model bit for bit.

    False for debug builds, which fuse no multiply-adds: 80 % of the elements of `gqa` match. False also for real
    GPUs whose special functions were not measured: with correctly rounded exponentials, 12 to 65 % match.
    """
    measured = provenance.get("engine") == "sim" or arch in MEASURED_ARCHS
    return measured and provenance.get("flavour") == "release"


def expected_of(
    case: Case,
    inputs: Mapping[str, Bytes],
    geometry: Geometry | None,
    arch: int,
    model: UseModel,
    *,
    constants: Constants | None,
    rows: I64 | None = None,
) -> Expected:
    """The expected output of the kernel with this geometry, with the reasons for any missing parts.

    `constants` are those of the source that ran, which the model needs; None if unknown. With `rows` (sequence, query,
    head), the result is for these rows: (1, rows, 1, hsv).
    """
    kernel = kernel_of(case.op, geometry, arch)
    if geometry is None or kernel is None:
        return Expected(missing=f"there is no error model for this kernel: {DECIDES}")
    found = None
    if constants is None:
        missing = "the rounding model lacks the configurations of this source's kernels"
    elif arch >= AMD:
        missing = "on AMD GPUs the rounding model does not decide, because their arithmetic is partly assumed"
    elif not uses_model(case, geometry.kernel, model, rows):
        missing = "the rounding model was skipped (to compute it: --model always)"
    else:
        wanted, at = None, () if rows is None else tuple(rows.T)
        if rows is not None:
            wanted = np.zeros((case.op.sizes.n_seq, case.op.sizes.n_q, case.op.sizes.n_head), np.bool_)
            wanted[at] = True
        found = model_of(case, dict(inputs), geometry.kernel, arch, constants=constants, wanted=wanted)
        missing = "" if found is not None else "there is no rounding model for this kernel"
        found = found if found is None or rows is None else found[at][None, :, None]
    return with_gaps(Expected(cache(partial(prediction_of, case.op, inputs, kernel, rows)), found, missing))


def prediction_of(op: Op, inputs: Mapping[str, Bytes], kernel: Kernel, rows: I64 | None) -> Prediction:
    """The error model's prediction for some rows (sequence, query, head) or all."""
    values = operand_values(op, inputs)
    return predict(op, values, kernel) if rows is None else predict_rows(op, values, kernel, rows)


def uses_model(case: Case, kernel: AttentionKernel, model: UseModel, rows: I64 | None = None) -> bool:
    """Whether the rounding model is fast enough for a run.

    The conversion of K and V does not count, except for huge ones. Only the model of mma_f16 is faster for fewer rows.
    """
    if model == "auto":
        sizes, share = case.op.sizes, 1.0
        if rows is not None and kernel.family is MMA_F16:
            share = len(rows) / (sizes.n_seq * sizes.n_q * sizes.n_head)
        return sizes.flop * share <= MODEL_FLOP and all(root.period is None for root in case.op.roots.values())
    return model == "always"
