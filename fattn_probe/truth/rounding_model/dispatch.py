"""Choose the rounding model of a run, by the kernels in its launch records."""

from collections.abc import Callable, Sequence

import numpy as np

from fattn_probe.arrays import F32, Bools
from fattn_probe.device import Device
from fattn_probe.launch.architecture import arch_number
from fattn_probe.launch.constants import SHIPPED, Constants
from fattn_probe.launch.record import LaunchRecord
from fattn_probe.scenario import Case
from fattn_probe.truth.rounding_model.mma_op import mma_f16
from fattn_probe.truth.rounding_model.mma_plan import mma_plan_of
from fattn_probe.truth.rounding_model.operands import Inputs, KernelOperands, operands_of
from fattn_probe.truth.rounding_model.tile import tile, tile_plan_of
from fattn_probe.truth.rounding_model.vec import vec, vec_plan_of

Compute = Callable[[KernelOperands, int, bool, Bools | None], F32]


def model_of(
    case: Case,
    inputs: Inputs,
    launches: Sequence[LaunchRecord],
    device: Device | int,
    *,
    constants: Constants = SHIPPED,
    exact_exp: bool = False,
    wanted: Bools | None = None,
) -> F32 | None:
    """The output that a run's kernels should give, bit for bit, (n_seq, n_q, n_head, hsv); None if no model fits.

    `wanted` (n_seq, n_q, n_head) marks the rows to compute; the others are undefined. `device` is the GPU, or nvcc's
    number of its architecture (90); `constants` are those of the source (`constants_of`). With `exact_exp` powers of
    two are rounded correctly, not as the hardware rounds them.
    """
    arch = device if isinstance(device, int) else arch_number(device.arch)
    for launch in launches:
        found = _model(launch, arch, constants)
        if found is not None:
            out = found(operands_of(case, inputs), case.op.params.n_kv_max, exact_exp, wanted)
            out.view(np.uint32)[np.isnan(out)] = 0x7FFFFFFF  # the NaN of a GPU's arithmetic
            return out
    return None


def has_model(launches: Sequence[LaunchRecord], arch: int, constants: Constants = SHIPPED) -> bool:
    """Whether a model fits the kernels of a run."""
    return any(_model(launch, arch, constants) is not None for launch in launches)


def by_row(launches: Sequence[LaunchRecord], arch: int, constants: Constants = SHIPPED) -> bool:
    """Whether the run's model takes less time if fewer rows are wanted."""
    return any(mma_plan_of(launch, arch, constants) for launch in launches)


def _model(launch: LaunchRecord, arch: int, constants: Constants) -> Compute | None:
    """The function that computes a launch's output; None if no model fits the kernel."""
    if mma := mma_plan_of(launch, arch, constants):
        return lambda operands, n_kv_max, exact_exp, wanted: mma_f16(operands, mma, n_kv_max, exact_exp, wanted)
    if vectors := vec_plan_of(launch, arch, constants):
        return lambda operands, n_kv_max, exact_exp, wanted: vec(operands, vectors, exact_exp)
    if tiles := tile_plan_of(launch, arch, constants):
        return lambda operands, n_kv_max, exact_exp, wanted: tile(operands, tiles, exact_exp)
    return None
