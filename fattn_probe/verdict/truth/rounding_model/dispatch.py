"""Choose the rounding model for a run by its attention kernel."""

import numpy as np

from fattn_probe.base.arrays import F32, Bools
from fattn_probe.cases.scenario import Case
from fattn_probe.llama.launch.constants import Constants
from fattn_probe.llama.launch.families import MMA_F16, TILE, VEC
from fattn_probe.llama.launch.kernel import AttentionKernel
from fattn_probe.verdict.truth.rounding_model.mma_op import mma_f16
from fattn_probe.verdict.truth.rounding_model.mma_plan import mma_plan_of
from fattn_probe.verdict.truth.rounding_model.operands import Inputs, operands_of
from fattn_probe.verdict.truth.rounding_model.tile import tile, tile_plan_of
from fattn_probe.verdict.truth.rounding_model.vec import vec, vec_plan_of

MODELLED = (MMA_F16, TILE, VEC)
"""The families that have a model."""


def model_of(
    case: Case,
    inputs: Inputs,
    kernel: AttentionKernel,
    arch: int,
    *,
    constants: Constants,
    wanted: Bools | None = None,
) -> F32 | None:
    """The output that a run's kernel should give, bit for bit; None on AMD GPUs and for a kernel without a model.

    The output is (n_seq, n_q, n_head, hsv). `wanted` (n_seq, n_q, n_head) marks the rows to compute; all others are
    undefined. `arch` is nvcc's number for the GPU's architecture (90); `constants` are from `constants_of`.
    """
    if kernel.family not in MODELLED:
        return None
    operands = operands_of(case, inputs, arch)
    if kernel.family is MMA_F16:
        plan, n_kv_max = mma_plan_of(kernel, arch, constants), case.op.params.n_kv_max
        out = mma_f16(operands, plan, n_kv_max, wanted)
    elif kernel.family is VEC:
        out = vec(operands, vec_plan_of(kernel, arch))
    else:
        out = tile(operands, tile_plan_of(kernel, arch, constants))
    out.view(np.uint32)[np.isnan(out)] = 0x7FFFFFFF  # the NaN that a GPU's arithmetic produces
    return out
