"""Verdicts on runs without an output."""

import pytest

from fattn_probe.machine.run.outcome import Failed, Fault, Lost, Missing, Unsupported
from fattn_probe.verdict.judge.finding import verdict_without_output
from fattn_probe.verdict.measure.verdict import Status

FAULT = Fault(
    "out-of-bounds",
    "read of 16 bytes, 32 past the end of K",
    "flash_attn_ext_f16",
    (3, 0, 0),
    (5, 1, 0),
    ("fattn-mma-f16.cuh:517 load_tile",),
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
            FAULT,
            Status.FAIL,
            "out-of-bounds: read of 16 bytes, 32 past the end of K"
            "\n  in flash_attn_ext_f16, block (3, 0, 0), thread (5, 1, 0)"
            "\n  fattn-mma-f16.cuh:517 load_tile",
        ),
        (Fault("AddressSanitizer", "heap-buffer-overflow"), Status.FAIL, "heap-buffer-overflow"),
    ],
)
def test_each_ending_has_its_status_and_its_own_words(outcome, status, reason):
    verdict = verdict_without_output(outcome)
    assert (verdict.status, verdict.reason, verdict.metrics) == (status, reason, None)
