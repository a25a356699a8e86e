"""Which model a run has: by the kernels that its launch records name."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fattn_probe.device import Device
from fattn_probe.model.mma_op import mma_f16
from fattn_probe.model.mma_plan import plan_of
from fattn_probe.model.operands import Inputs, operands_of
from fattn_probe.model.vec import vec, vec_plan_of
from fattn_probe.run.launches import LaunchRecord
from fattn_probe.scenario import Case


def model_of(
    case: Case, inputs: Inputs, launches: Sequence[LaunchRecord], device: Device | int, *, exact_exp: bool = False
) -> npt.NDArray[np.float32] | None:
    """What a run's kernels compute if they are right, rounded where they round: (n_seq, n_q, n_head, hsv).

    `launches` are the run's, `device` the GPU, or its architecture as nvcc numbers it (90). None where there is no
    model of the kernel. With `exact_exp` powers of two are correctly rounded instead of as the hardware does.
    """
    arch = device if isinstance(device, int) else int(device.arch)
    for launch in launches:
        mma_plan, vec_plan = plan_of(launch, arch), vec_plan_of(launch, arch)
        if mma_plan is not None:
            return _with_hardware_nan(mma_f16(operands_of(case, inputs), mma_plan, case.n_kv_max, exact_exp))
        if vec_plan is not None:
            return _with_hardware_nan(vec(operands_of(case, inputs), vec_plan, exact_exp))
    return None


def _with_hardware_nan(out: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """NaNs with the bits that a GPU's arithmetic gives them."""
    out.view(np.uint32)[np.isnan(out)] = 0x7FFFFFFF
    return out
