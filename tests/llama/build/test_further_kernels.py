"""Kernels that a change adds to the attention headers: of no family, with template parameters of their own or none."""

import shutil

import numpy as np
import pytest

from fattn_probe.base.errors import BuildError
from fattn_probe.cases.scenario.cases import cases_of
from fattn_probe.cases.shipped import find
from fattn_probe.llama.build.rewrite import Style, rewrite
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from fattn_probe.machine.run.prepare import prepare
from fattn_probe.machine.run.session import RunOptions, Session
from tests.made import H200, captured

KERNELS = """
template <int D, bool twice>
static __global__ void further_template(float * dst) { dst[0] = twice ? 2.0f*D : D; }
static __global__ void further_plain(float * dst) { dst[1] = 3.0f; }

"""
LAUNCHES = """
    further_template<DV, true><<<1, 1, 0, main_stream>>>((float *) KQV->data);
    further_plain<<<1, 1, 0, main_stream>>>((float *) KQV->data);
"""
FUNCTION = "template <int DV, int ncols1, int ncols2>\nvoid launch_fattn("


@pytest.fixture
def tree(tmp_path):
    shutil.copytree(resolve(DEFAULT_SOURCE).root, tmp_path / "llama.cpp")
    header = tmp_path / "llama.cpp/ggml/src/ggml-cuda/fattn-common.cuh"
    before, function, after = header.read_text().partition(FUNCTION)
    body, check, end = after.rpartition("    CUDA_CHECK(cudaGetLastError());\n}")
    header.write_text("".join((before, KERNELS, function, body, LAUNCHES, check, end)))
    return resolve(str(tmp_path / "llama.cpp"))


@pytest.mark.build
@pytest.mark.network
def test_they_are_compiled_when_they_are_launched(tree):
    session, (case,) = Session(RunOptions(tree)), cases_of([find("scenario", "gqa")])
    prepare(session, [(case, [H200])])
    assert np.ravel(captured(session, case).dst)[:2].tolist() == [2.0 * case.op.sizes.hsv, 3.0]


@pytest.mark.parametrize(
    "kernel",
    [
        "static __global__ void k(float *) {}",
        "template <int D = 4> static __global__ void k(float * dst) { dst[0] = D; }",
        "static __global__ void\n#ifdef A\n__launch_bounds__(4)\n#endif\nk(float * dst) { dst[0] = 1; }",
    ],
)
def test_a_kernel_whose_body_cannot_be_moved_is_refused_and_does_not_do_nothing(kernel):
    assert "dst" not in kernel or "dst[0]" in rewrite(kernel, "fattn-x.cuh", frozenset(), Style()).text
    with pytest.raises(BuildError, match="the kernel k cannot be compiled separately"):
        rewrite(kernel, "fattn-x.cuh", frozenset(), Style(bodies="none"))
