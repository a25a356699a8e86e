"""How runs end: literal transcripts of the runner, ggml, the dynamic linker, the checker and the sanitizers."""

import resource

import pytest

from fattn_probe.base.errors import MachineError
from fattn_probe.base.process import Completed
from fattn_probe.machine.run import frames
from fattn_probe.machine.run.frames import short_frame, short_frames
from fattn_probe.machine.run.outcome import Failed, Finding, Lost, Missing, parse_ending

GGML_ASSERT = "/src/ggml/src/ggml.c:5519: GGML_ASSERT(q->ne[3] == k->ne[3]) failed\n"
GDB_STACK = """[Thread debugging using libthread_db enabled]
0x00007f2bc0cf1bd3 in __GI___wait4 (pid=14225) at ../sysdeps/unix/sysv/linux/wait4.c:30
#0  0x00007f2bc0cf1bd3 in __GI___wait4 (pid=14225) at ../sysdeps/unix/sysv/linux/wait4.c:30
#1  0x00007f2bc116064b in ggml_print_backtrace () from /b/libggml-base.so.0
#2  0x00007f2bc116079e in ggml_abort () from /b/libggml-base.so.0
#3  0x00007f2bc116bd77 in ggml_flash_attn_ext () from /b/libggml-base.so.0
\x1b[33m#4  0x000055d93ee7fa71 in main ()\x1b[m
[Inferior 1 (process 14224) detached]
"""
CUDA_ERROR = """CUDA error: an illegal memory access was encountered
  current device: 0, in function ggml_backend_cuda_synchronize at /src/ggml-cuda.cu:2982
  cudaStreamSynchronize(cuda_ctx->stream())
/src/ggml-cuda.cu:90: CUDA error
/b/libggml-base.so.0(+0x1764b)[0x7f2bc116064b]
/b/libggml-base.so.0(ggml_abort+0x15e)[0x7f2bc116079e]
/b/libggml-cuda.so(_Z15ggml_cuda_errorPKcS0_S0_iS0_+0xb7)[0x7f2bc216bd77]
"""
FINDING = (
    'fattn-probe: finding: {"kind":"out-of-bounds","message":"read of 16 bytes past K","kernel":"flash_attn_ext_f16",'
    '"block":[1,0,0],"thread":[3,1,0],"frames":["/b/libggml-cuda.so+0x1234"]}\n'
)
ASAN = """=================================================================
==77==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x7f00 at pc 0x55 bp 0x7f sp 0x7f
READ of size 16 at 0x7f00 thread T0
    #0 0x55aa in flash_attn_ext_f16_load_tile /src/fattn-mma-f16.cuh:240
    #1 0x55bb in flash_attn_ext_f16 /src/fattn-mma-f16.cuh:900

0x7f00 is located 0 bytes after 32768-byte region
    #0 0x99 in aligned_alloc
"""
UBSAN = "/src/fattn-vec.cuh:12:7: runtime error: signed integer overflow: 2147483647 + 1 cannot be represented\n"
LINKER = "/b/fattn-runner: symbol lookup error: /b/libggml-cuda.so: undefined symbol: _Z22ggml_cuda_topk_moe_opsv\n"


def ended(code, stderr="", stdout=""):
    return parse_ending(Completed(("fattn-runner",), code, stdout, stderr, 0.1))


def test_a_successful_run_has_no_ending():
    assert ended(0, "ggml_cuda_init: a warning\n") is None


@pytest.mark.parametrize(
    ("code", "said"), [(87, "fattn-probe: missing symbol: _Z22ggml_cuda_topk_moe_opsv\n"), (127, LINKER)]
)
def test_a_left_out_function_is_named(code, said):
    assert ended(code, "some warning\n" + said) == Missing("_Z22ggml_cuda_topk_moe_opsv")


def test_the_checker_s_finding():
    fault = ended(86, "ggml: a warning\n" + FINDING)
    assert isinstance(fault, Finding)
    assert (fault.message, fault.frames) == ("read of 16 bytes past K", ("/b/libggml-cuda.so+0x1234",))
    assert (fault.kind, fault.kernel) == ("out-of-bounds", "flash_attn_ext_f16")
    assert (fault.block, fault.thread) == ((1, 0, 0), (3, 1, 0))


@pytest.mark.parametrize(
    ("said", "message", "frames", "place"),
    [
        (
            ASAN,
            "AddressSanitizer: heap-buffer-overflow",
            (
                "flash_attn_ext_f16_load_tile /src/fattn-mma-f16.cuh:240",
                "flash_attn_ext_f16 /src/fattn-mma-f16.cuh:900",
            ),
            ("/src/fattn-mma-f16.cuh", 240),
        ),
        (UBSAN, "/src/fattn-vec.cuh:12:7: signed integer overflow", (), ("/src/fattn-vec.cuh", 12)),
    ],
)
def test_a_sanitizer_s_finding(said, message, frames, place):
    fault = ended(1, said)
    assert isinstance(fault, Finding)
    assert fault.message.startswith(message)
    assert (fault.frames, (fault.file, fault.line)) == (frames, place)


@pytest.mark.parametrize(
    ("code", "stderr", "stdout", "message", "stack"),
    [
        (
            -6, GGML_ASSERT, GDB_STACK, GGML_ASSERT.strip(),
            ("#3  0x00007f2bc116bd77 in ggml_flash_attn_ext () from /b/libggml-base.so.0",
             "#4  0x000055d93ee7fa71 in main ()"),
        ),
        (
            -6, CUDA_ERROR, "",
            "CUDA error: an illegal memory access was encountered\n"
            "current device: 0, in function ggml_backend_cuda_synchronize at /src/ggml-cuda.cu:2982\n"
            "cudaStreamSynchronize(cuda_ctx->stream())\n"
            "/src/ggml-cuda.cu:90: CUDA error",
            ("/b/libggml-cuda.so(_Z15ggml_cuda_errorPKcS0_S0_iS0_+0xb7)[0x7f2bc216bd77]",),
        ),
        (
            1, "fattn-runner: ggml_backend_graph_compute: GGML status: error (operation failed)\n", "",
            "ggml_backend_graph_compute: GGML status: error (operation failed)", (),
        ),
    ],
    ids=["an assertion, with gdb's stack", "a CUDA error, with the C library's", "a graph that did not compute"],
)  # fmt: skip
def test_a_failure_has_its_message_and_its_stack(code, stderr, stdout, message, stack):
    assert ended(code, stderr, stdout) == Failed(message, stack)


def test_the_hip_backend_says_rocm():
    found = ended(-6, CUDA_ERROR.replace("CUDA error", "ROCm error"), "")
    assert found.message.splitlines()[0] == "ROCm error: an illegal memory access was encountered"


def test_the_simulator_says_which_limit_a_call_exceeds():
    why = "73856 bytes of dynamic LDS, where the GPU allows 65536"
    found = ended(-6, f"fattn-probe: refused: {why}\n{CUDA_ERROR}", "")
    assert found.message.splitlines()[2:4] == ["cudaStreamSynchronize(cuda_ctx->stream())", why]


@pytest.mark.parametrize(
    ("code", "stderr", "words"),
    [
        (86, FINDING[:60], ""),  # cut off
        (-11, "", "SIGSEGV"),
        (-9, "", "SIGKILL"),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'\n", "bad_alloc"),
        (1, "fattn-runner: there is no backend 'CUDA0' here; there is: CPU\n", "no backend 'CUDA0'"),
    ],
)
def test_endings_that_are_no_verdict_on_the_kernel(code, stderr, words):
    ending = ended(code, stderr)
    assert isinstance(ending, Lost)
    assert words in ending.message


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (1, "cudaMalloc failed: out of memory\nfattn-runner: cannot allocate 3584 bytes for mask\n"),
        (-6, "CUDA error: out of memory\n  current device: 0\n/src/ggml-cuda.cu:90: CUDA error\n"),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'\n"),
    ],
)
def test_a_limit_of_addresses_is_no_verdict_and_no_lost_run(monkeypatch, code, said):
    """Under `ulimit -v`, a run was lost, or failed with a CUDA error of ggml's pool."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (2 << 30, resource.RLIM_INFINITY))
    with pytest.raises(MachineError, match=r"may use 2 GiB of address space here .* reserves 16 GiB .*`ulimit -v unl"):
        ended(code, said)
    assert isinstance(ended(1, "another reason\n"), Lost)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert isinstance(ended(code, said), Lost | Failed)


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


def test_places_and_frames_are_named_once_and_kernels_of_both_engines_read_alike():
    assert frames.place_of("void f(int) at /tmp/my programs/a b.cu:7") == ("/tmp/my programs/a b.cu", 7)
    assert short_frames([LOAD, LAMBDA, LAMBDA, LAMBDA, LOAD]) == (
        short_frame(LOAD),
        "lambda at ggml/src/ggml-cuda/common.cuh:442",
        short_frame(LOAD),
    )
    assert len(short_frames([f"f at a.cu:{line}" for line in range(20)])) == 8
    sim = "void flash_attn_ext_f16(const char*, int) [with int DKQ = 64; bool use_sparse = false; float2 = float2]"
    assert frames.short_kernel(sim) == "flash_attn_ext_f16<64,false>"
    assert frames.short_kernel("void flash_attn_ext_f16<64, false>(char const*, int)") == "flash_attn_ext_f16<64,false>"
    assert frames.short_kernel("void no_template(int)") == "no_template"


TILE = "ggml_cuda_mma::tile<16, 8, __half2, (ggml_cuda_mma::data_layout)0>"
TILES = ", ".join([TILE] * 6)
ITERATION = f"void flash_attn_ext_f16_iter<64, 64, 8, 8, false, {TILES}>(int, {TILE}*) at {ROOT}/a.cuh:9"


def test_people_see_no_long_template_arguments():
    place = "ggml/src/ggml-cuda/a.cuh:9"
    brief = (f"flash_attn_ext_f16_iter<...> at {place}", "flash_attn_ext_f16<64, 64, 8, 8, false> at b.cuh:3")
    stack = (ITERATION, "void flash_attn_ext_f16<64, 64, 8, 8, false>(char const*) at b.cuh:3")
    assert frames.brief_frames(stack) == brief
    assert frames.describe_finding(Finding("race", "two writes", frames=stack)).splitlines()[1:] == [
        f"  {line}" for line in brief
    ]
    assert short_frames(stack)[0].count(TILE) == 6
    assert frames.brief_frames(["/lib/libc.so.6+0x12"]) == ("/lib/libc.so.6+0x12",)


def test_a_kernel_and_its_body_are_one_frame_with_the_body_s_line():
    body = "void simt_body::flash_attn_tile<72, 72>(char const*) at /o/overlay/ggml/src/ggml-cuda/fattn-tile.cuh:900"
    caller = "void flash_attn_tile<72, 72>(char const*) at /o/overlay/ggml/src/ggml-cuda/fattn-tile.cuh:814"
    other = "void flash_attn_tile<64, 64>(char const*) at /o/overlay/ggml/src/ggml-cuda/fattn-tile.cuh:814"
    assert list(frames.whole_kernels([body, caller, other])) == [body.replace("simt_body::", ""), other]
    assert list(frames.whole_kernels([caller, body])) == [caller, body.replace("simt_body::", "")]
    once = body.replace("simt_body::flash_attn_tile<72, 72>", "simt_once_flash_attn_tile_iter<72>")
    iteration = caller.replace("flash_attn_tile<72, 72>", "flash_attn_tile_iter<72, true>")
    assert list(frames.whole_kernels([once, iteration, other])) == [once.replace("simt_once_", ""), other]
