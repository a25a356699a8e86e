"""The TileLang kernel: lowered without a GPU, and run on simulated ones."""

import numpy as np
import pytest

from fattn_probe.base.errors import ComparisonError, InputError
from fattn_probe.cases.device import load_devices, parse_targets
from fattn_probe.cases.op import Sizes
from fattn_probe.lab.kernels import tilelang_attention
from fattn_probe.lab.kernels.contender import UNTIMED, How
from fattn_probe.lab.kernels.tilelang_attention import (
    TILINGS,
    Array,
    LoweredKernel,
    TileLangTiling,
    attend,
    kernel_for,
    lower,
    program_text,
    run_lowered,
    tiling_for,
)
from fattn_probe.machine.run.simulator import Simulation
from tests.lab.kernels.attention_case import assert_as_rounded, case, needs

with_tilelang = needs("tilelang", extra="tilelang")
SIZES = Sizes(1, 2, 1, 100, 200, 64, 64)


def on(name):
    (target,) = parse_targets(name, load_devices(None))
    return target


def test_the_tiling_is_the_first_that_fits():
    assert tiling_for(SIZES, 99 * 1024, causal=False) == TILINGS[0]
    assert tiling_for(SIZES, 99 * 1024, causal=True).stages == 1
    assert TILINGS[0].shared_bytes(SIZES) == 2 * 64 * (64 + 2 * 128)
    assert tiling_for(SIZES, 24 * 1024, causal=False) == TileLangTiling(stages=1)
    with pytest.raises(InputError, match="do not fit into 1024 bytes"):
        tiling_for(SIZES, 1024, causal=False)


@pytest.mark.parametrize("name", ["sim:v100", "sim:mi300x", "cpu"])
def test_gpus_that_it_is_not_for(name):
    problem = case(1, 1, 1, 16, 16, 64, 64)
    with pytest.raises(InputError, match="needs an NVIDIA GPU, Ampere or newer"):
        attend(problem.arrays, target=on(name), how=How())


def test_its_own_runtime_needs_a_real_gpu_and_head_sizes_are_multiples_of_16():
    problem = case(1, 1, 1, 16, 16, 64, 64)
    with pytest.raises(InputError, match="own runtime needs a real GPU; use --kernel tilelang instead"):
        tilelang_attention.attend_by_runtime(problem.arrays, target=on("sim:h200"), how=How())
    with pytest.raises(InputError, match="multiples of 16"):
        kernel_for(Sizes(1, 1, 1, 16, 16, 72, 64), 1.0, TileLangTiling(), causal=False, masked=False)


def test_an_error_of_tilelang_need_not_have_a_message():
    assert tilelang_attention.reason(AssertionError()) == "AssertionError"
    assert tilelang_attention.reason(ValueError("Traceback\n  in lower\nno layout for o\n")) == "no layout for o"


@with_tilelang
@pytest.mark.parametrize("masked", [False, True])
def test_what_is_lowered(masked):
    made = lower(SIZES, 0.125, TileLangTiling(), causal=False, masked=masked)
    assert (made.grid, made.block, made.shared_bytes) == ((2, 2, 1), (128, 1, 1), TileLangTiling().shared_bytes(SIZES))
    assert sorted(made.arguments) == sorted("KLOQV" + "M" * masked)
    assert f"void __launch_bounds__(128, 1) {made.name}(" in made.source
    assert "tl::cp_async_gs_conditional<16>" in made.source  # 200 KV rows are no multiple of 64
    assert "tl::mma_sync<tl::DataType::kFloat16" in made.source


RUNS = {
    "causal": (case(1, 4, 2, 128, 256, 64, 64, causal=True), "sim:h200", "release"),
    "edges": (case(1, 2, 1, 100, 203, 64, 64, masked=True, causal=True), "sim:h200", "check"),
    "two stages": (case(2, 2, 1, 64, 130, 128, 128), "sim:rtx4090", "check"),
    "head sizes": (case(1, 1, 1, 33, 77, 80, 96), "sim:a100", "release"),
    "small tiles": (case(1, 1, 1, 64, 130, 256, 256, causal=True), "sim:rtx4090", "release"),
    "more queries than KV rows": (case(1, 2, 1, 70, 50, 64, 64, causal=True), "sim:h200", "release"),
}


@with_tilelang
@pytest.mark.build
@pytest.mark.parametrize(("problem", "name", "flavour"), RUNS.values(), ids=RUNS)
def test_the_error_on_a_simulated_gpu_is_that_of_p_in_f16(problem, name, flavour):
    made = attend(problem.arrays, target=on(name), how=How(check=flavour == "check"))
    assert_as_rounded(problem, made.o, made.lse)


@with_tilelang
@pytest.mark.gpu
@pytest.mark.parametrize("name", ["causal", "edges", "two stages", "more queries than KV rows"])
def test_its_own_runtime_is_as_exact(name):
    problem, _, _ = RUNS[name]
    made = tilelang_attention.attend_by_runtime(problem.arrays, target=on("gpu"), how=How(UNTIMED))
    assert_as_rounded(problem, made.o, made.lse)


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
    text = program_text(kernel(), {"x": (X.dtype, X.shape), **OUTPUTS}, frozenset(OUTPUTS))
    assert text.startswith(SOURCE.splitlines()[0])
    assert "run_kernel(reversed, dim3(3, 1, 1), dim3(32, 4, 1), 512, words" in text
    assert '{"x", 1536, false}, {"y", 3072, true}, {"threads", 12, true}' in text


def run(lowered, *, check=False):
    (target,) = parse_targets("sim:h200", load_devices(None))
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
