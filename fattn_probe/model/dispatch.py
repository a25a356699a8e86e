"""Which model a run has: by the kernels that its launch records name."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fattn_probe.device import Device
from fattn_probe.model.mma_op import mma_f16
from fattn_probe.model.mma_plan import mma_plan_of
from fattn_probe.model.operands import Inputs, Operands, operands_of
from fattn_probe.model.tile import tile, tile_plan_of
from fattn_probe.model.vec import vec, vec_plan_of
from fattn_probe.run.launches import LaunchRecord
from fattn_probe.scenario import Case

F32 = npt.NDArray[np.float32]


def model_of(
    case: Case, inputs: Inputs, launches: Sequence[LaunchRecord], device: Device | int, *, exact_exp: bool = False
) -> F32 | None:
    """What a run's kernels compute if they are right, rounded where they round: (n_seq, n_q, n_head, hsv).

    `launches` are the run's, `device` the GPU, or its architecture as nvcc numbers it (90). None where there is no
    model of the kernel. With `exact_exp` powers of two are correctly rounded instead of as the hardware does.
    """
    arch = device if isinstance(device, int) else int(device.arch)
    operands = operands_of(case, inputs)
    for launch in launches:
        found = _computed(operands, launch, arch, case.n_kv_max, exact_exp)
        if found is not None:
            found.view(np.uint32)[np.isnan(found)] = 0x7FFFFFFF  # the NaN of a GPU's arithmetic
            return found
    return None


def _computed(operands: Operands, launch: LaunchRecord, arch: int, n_kv_max: int, exact_exp: bool) -> F32 | None:
    """The output of one launch; None where it is not of a kernel that computes attention."""
    if mma := mma_plan_of(launch, arch):
        return mma_f16(operands, mma, n_kv_max, exact_exp)
    if vectors := vec_plan_of(launch, arch):
        return vec(operands, vectors, exact_exp)
    if tiles := tile_plan_of(launch, arch):
        return tile(operands, tiles, exact_exp)
    return None
