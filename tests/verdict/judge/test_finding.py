"""Runs without an output: the verdict, and what stopped a kernel, and where."""

import pytest

from fattn_probe.machine.run.outcome import Failed, Finding, Lost, Missing, Unsupported
from fattn_probe.verdict.judge.support import finding_of, verdict_without_output
from fattn_probe.verdict.measure.verdict import Status

KERNEL = "void flash_attn_tile<64, 64, 2, 1, false>(char const*)"
FAULT = Finding("race", "byte 16 is read", KERNEL, "a.cuh", 7, (1, 2, 0), (3, 4, 0), ("f<1> at a.cuh:7",))


def test_a_fault_has_its_kernel_and_its_place():
    found = finding_of(FAULT)
    assert (found.kind, found.file, found.line, found.block, found.thread) == ("race", "a.cuh", 7, (1, 2, 0), (3, 4, 0))
    assert found.place == f"{found.kernel}, block (1, 2, 0), thread (3, 4, 0), a.cuh:7"
    assert found.kernel.startswith("flash_attn_tile<64")
    bare = finding_of(Finding("race", "somewhere"))
    assert (bare.kernel, bare.place) == ("", "") and bare == Finding("race", "race: somewhere")


def test_an_abort_has_the_place_in_its_message():
    found = finding_of(Failed("/x/ggml/src/ggml-cuda/fattn.cu:284: fatal error\nmore", ()))
    assert (found.kind, found.line) == ("abort", 284) and found.file.endswith("fattn.cu")
    assert found.message.endswith("fatal error")
    for api in ("CUDA", "ROCm"):
        error = finding_of(Failed(f"{api} error: invalid argument", ()))
        assert (error.kind, error.file, error.line) == ("CUDA error", "", 0)
    assert finding_of(Unsupported("no")) is None


STOPPED = Finding(
    "out-of-bounds",
    "read of 16 bytes, 32 past the end of K",
    "flash_attn_ext_f16",
    block=(3, 0, 0),
    thread=(5, 1, 0),
    frames=("fattn-mma-f16.cuh:517 load_tile",),
)


@pytest.mark.parametrize(
    ("outcome", "status", "reason"),
    [
        (Unsupported("CUDA0 does not support the op"), Status.UNSUPPORTED, "CUDA0 does not support the op"),
        (Missing("_Z3foov"), Status.LOST, "the build lacks a function that was called: _Z3foov"),
        (Lost("no answer after 60 s"), Status.LOST, "no answer after 60 s"),
        (
            Lost("the runner was killed by SIGSEGV", ("init(int) at ggml-cuda.cu:257", "main at runner.cpp:9")),
            Status.LOST,
            "the runner was killed by SIGSEGV\n  init at ggml-cuda.cu:257\n  main at runner.cpp:9",
        ),
        (
            Failed("fattn.cu:95: fatal error", ("#1 launch_fattn", "#2 main")),
            Status.FAIL,
            "fattn.cu:95: fatal error\n  #1 launch_fattn\n  #2 main",
        ),
        (
            STOPPED,
            Status.FAIL,
            "out-of-bounds: read of 16 bytes, 32 past the end of K"
            "\n  in flash_attn_ext_f16, block (3, 0, 0), thread (5, 1, 0)"
            "\n  fattn-mma-f16.cuh:517 load_tile",
        ),
        (Finding("AddressSanitizer", "heap-buffer-overflow"), Status.FAIL, "heap-buffer-overflow"),
    ],
)
def test_each_ending_has_its_status_and_its_own_words(outcome, status, reason):
    verdict = verdict_without_output(outcome)
    assert (verdict.status, verdict.reason, verdict.metrics) == (status, reason, None)
