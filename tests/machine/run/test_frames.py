import pytest

from fattn_probe.machine.run.frames import (
    brief_frames,
    describe_finding,
    place_of,
    short_frame,
    short_frames,
    short_kernel,
    whole_kernels,
)
from fattn_probe.machine.run.outcome import Finding

ROOT = "/home/me/.cache/fattn-probe/builds/b11549-sim-sm90-release-0ecd5d1e37bd/overlay/ggml/src/ggml-cuda"
LOAD = (
    "void flash_attn_ext_f16_load_tile<64, 4, 64, false, true, false>(__half2 const*, __half2*, int, int const*) "
    f"[clone .constprop.0] at {ROOT}/template-instances/../common.cuh:822"
)
LAMBDA = (
    "operator()<flash_attn_ext_f16_load_tile<64, 4>(const half2*, int)::<lambda(int)> > "
    f"at {ROOT}/template-instances/../common.cuh:442"
)


@pytest.mark.parametrize(
    ("frame", "short"),
    [
        (LOAD, "flash_attn_ext_f16_load_tile<64, 4, 64, false, true, false> at ggml/src/ggml-cuda/common.cuh:822"),
        ("unsigned int simt::f<int (*)(int)>(int) at a.cu:3", "simt::f<int (*)(int)> at a.cu:3"),
        ("/lib/libc.so.6+0x12", "/lib/libc.so.6+0x12"),
        ("void apply<Op>(Op, int*) at /tmp/my programs/a b.cu:7", "apply<Op> at /tmp/my programs/a b.cu:7"),
    ],
)
def test_a_function_loses_its_parameters_and_the_machine_s_path(frame, short):
    assert short_frame(frame) == short


def test_a_place_s_path_may_have_spaces():
    assert place_of("void f(int) at /tmp/my programs/a b.cu:7") == ("/tmp/my programs/a b.cu", 7)


def test_a_place_is_named_once():
    assert short_frames([LOAD, LAMBDA, LAMBDA, LAMBDA, LOAD]) == (
        short_frame(LOAD),
        "lambda at ggml/src/ggml-cuda/common.cuh:442",
        short_frame(LOAD),
    )


def test_only_the_innermost_are_kept():
    assert len(short_frames([f"f at a.cu:{line}" for line in range(20)])) == 8


def test_kernels_of_both_engines_read_alike():
    sim = "void flash_attn_ext_f16(const char*, int) [with int DKQ = 64; bool use_sparse = false; float2 = float2]"
    assert short_kernel(sim) == "flash_attn_ext_f16<64,false>"
    assert short_kernel("void flash_attn_ext_f16<64, false>(char const*, int)") == "flash_attn_ext_f16<64,false>"
    assert short_kernel("void no_template(int)") == "no_template"


TILE = "ggml_cuda_mma::tile<16, 8, __half2, (ggml_cuda_mma::data_layout)0>"
TILES = ", ".join([TILE] * 6)
ITERATION = f"void flash_attn_ext_f16_iter<64, 64, 8, 8, false, {TILES}>(int, {TILE}*) at {ROOT}/a.cuh:9"


def test_people_see_no_long_template_arguments():
    place = "ggml/src/ggml-cuda/a.cuh:9"
    brief = (f"flash_attn_ext_f16_iter<...> at {place}", "flash_attn_ext_f16<64, 64, 8, 8, false> at b.cuh:3")
    frames = (ITERATION, "void flash_attn_ext_f16<64, 64, 8, 8, false>(char const*) at b.cuh:3")
    assert brief_frames(frames) == brief
    assert describe_finding(Finding("race", "two writes", frames=frames)).splitlines()[1:] == [
        f"  {line}" for line in brief
    ]
    assert short_frames(frames)[0].count(TILE) == 6
    assert brief_frames(["/lib/libc.so.6+0x12"]) == ("/lib/libc.so.6+0x12",)


def test_a_kernel_and_its_body_are_one_frame_with_the_body_s_line():
    body = "void simt_body::flash_attn_tile<72, 72>(char const*) at /o/overlay/ggml/src/ggml-cuda/fattn-tile.cuh:900"
    caller = "void flash_attn_tile<72, 72>(char const*) at /o/overlay/ggml/src/ggml-cuda/fattn-tile.cuh:814"
    other = "void flash_attn_tile<64, 64>(char const*) at /o/overlay/ggml/src/ggml-cuda/fattn-tile.cuh:814"
    assert list(whole_kernels([body, caller, other])) == [body.replace("simt_body::", ""), other]
    assert list(whole_kernels([caller, body])) == [caller, body.replace("simt_body::", "")]
