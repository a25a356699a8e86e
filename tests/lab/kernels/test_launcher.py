"""A kernel given as text, on arrays."""

import numpy as np
import pytest

from fattn_probe.base.errors import ComparisonError
from fattn_probe.cases.device import every_device, parse_targets
from fattn_probe.lab.kernels.contender import How
from fattn_probe.lab.kernels.tilelang_attention import Array, LoweredKernel, program_text, run_lowered
from fattn_probe.machine.run.simulator import Simulation

SOURCE = """#include <cuda_runtime.h>
extern "C" __global__ void reversed(const float *x, double *y, int *threads) {
    extern __shared__ float tile[];
    const int i = threadIdx.x + blockDim.x * threadIdx.y, n = blockDim.x * blockDim.y;
    tile[i] = x[blockIdx.x * n + i];
    @BARRIER@
    y[blockIdx.x * n + i] = tile[n - 1 - i];
    threads[blockIdx.x] = n;
}
"""
X = np.arange(3 * 128, dtype=np.float32).reshape(3, 128)
OUTPUTS: dict[str, Array] = {"y": (np.dtype(np.float64), (3, 128)), "threads": (np.dtype(np.int32), (3,))}


def kernel(barrier="__syncthreads();"):
    source = SOURCE.replace("@BARRIER@", barrier)
    return LoweredKernel(source, "reversed", (3, 1, 1), (32, 4, 1), 128 * 4, ("x", "y", "threads"))


def test_the_text_launches_it_on_arrays_of_these_bytes():
    arrays = {"x": (X.dtype, X.shape), **OUTPUTS}
    text = program_text(kernel(), arrays, frozenset(OUTPUTS))
    assert text.startswith(SOURCE.splitlines()[0])
    assert "run_kernel(reversed, dim3(3, 1, 1), dim3(32, 4, 1), 512, words" in text
    assert '{"x", 1536, false}, {"y", 3072, true}, {"threads", 12, true}' in text


def run(lowered, *, check=False):
    (target,) = parse_targets("sim:h200", every_device(None))
    how = How(simulation=Simulation(1), check=check)
    return run_lowered(lowered, {"x": X}, OUTPUTS, includes=(), target=target, how=how)


@pytest.mark.build
def test_it_runs_on_a_simulated_gpu():
    made, seconds = run(kernel())
    assert seconds == ()
    assert np.array_equal(made["y"], X[:, ::-1])
    assert list(made["threads"]) == [128] * 3


@pytest.mark.build
def test_a_finding_of_the_checker_is_an_error():
    with pytest.raises(ComparisonError, match="uninitialized-shared: byte 508"):
        run(kernel(barrier=""), check=True)
