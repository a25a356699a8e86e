from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fattn_probe.base.errors import BuildError, InputError
from fattn_probe.daily.ops.parse import (
    Backend,
    OpResult,
    OpsReport,
    OpsSummary,
    Transcript,
    ask_options,
    parse_line,
    plan_ops,
    probe_options,
)
from fattn_probe.machine.run.outcome import Missing
from tests.made import executable

A = (
    "FLASH_ATTN_EXT(hsk=64,hsv=64,nh=4,nr23=[1,1],kv=113,nb=1,mask=1,sinks=1,max_bias=0.000000,"
    "logit_softcap=0.000000,prec=f32,type_KV=f16,permute=[0,1,2,3])"
)
B = A.replace("type_KV=f16", "type_K=f16,type_V=f16")
C = A.replace("type_KV=f16", "type_K=f16,type_V=q8_0").replace(
    "permute=[0,1,2,3]", "permute=[0,1,2,3],kv_view=1,v_is_view_of_k=0,n_kv_max=0"
)
OK, FAIL = "\x1b[1;32mOK\x1b[0m", "\x1b[1;31mFAIL\x1b[0m"


@pytest.mark.parametrize("case", [A, B, C])
@pytest.mark.parametrize(
    ("ending", "status", "message"),
    [
        (OK, "ok", ""),
        (FAIL, "fail", ""),
        ("\x1b[1;32mSUPPORTED\x1b[0m", "ok", ""),
        ("\x1b[1;31mNOT SUPPORTED\x1b[0m", "not-supported", ""),
        ("not supported [CUDA0] ", "not-supported", "CUDA0"),
        ("not supported", "not-supported", ""),
    ],
)
def test_endings_of_every_era(case, ending, status, message):
    assert parse_line(f"  {case}: {ending}\r\n") == OpResult(case, status, message)


@pytest.mark.parametrize(
    ("message", "error", "threshold"),
    [
        ("[FLASH_ATTN_EXT] ERR = 0.012345678 > 0.000500000", 0.012345678, 0.0005),
        ("[FLASH_ATTN_EXT] NMSE = 1.000000000 > 0.000500000", 1.0, 0.0005),
        ("[FLASH_ATTN_EXT] NaN at index 17 (CUDA0=nan CPU=0.251953)", None, None),
        ("[FLASH_ATTN_EXT] inf mismatch: CUDA0=inf CPU=0.124023", None, None),
        ("[FLASH_ATTN_EXT] inf sign mismatch: CUDA0=inf CPU=-inf", None, None),
        ("[FLASH_ATTN_EXT] ERR = inf > 0.000500000", None, None),
        ("sentinel mismatch: sent_2", None, None),
        ("failed to allocate tensors [CUDA0]", None, None),
    ],
)
def test_failures_say_why_before_the_case_or_after_it(message, error, threshold):
    expected = OpResult(C, "fail", message, error, threshold)
    assert parse_line(f"{message}   {C}: {FAIL}") == expected
    assert parse_line(f"  {C}: {message} {FAIL}") == expected


def test_several_messages_on_one_line():
    line = f"sentinel mismatch: sent_1 [FLASH_ATTN_EXT] ERR = 0.25 > 0.0005   {B}: {FAIL}"
    result = parse_line(line)
    assert isinstance(result, OpResult)
    assert (result.error, result.message) == (0.25, "sentinel mismatch: sent_1 [FLASH_ATTN_EXT] ERR = 0.25 > 0.0005")


@pytest.mark.parametrize(
    ("ending", "runs", "us", "gflops"),
    [
        ("192 runs -  5899.99 us/run - 125.83 MFLOP/run - \x1b[1;34m 21.33 GFLOPS\x1b[0m", 192, 5899.99, 21.33),
        ("1 runs - 11391142.00 us/run -  64.42 GFLOP/run - \x1b[1;34m  5.66 GFLOPS\x1b[0m", 1, 11391142.0, 5.66),
        ("2862 runs -    52.10 us/run -   8.39 MFLOP/run - \x1b[1;34m  1.50 TFLOPS\x1b[0m", 2862, 52.1, 1500.0),
    ],
)
def test_perf(ending, runs, us, gflops):
    result = parse_line(f"  {C}:                {ending}")
    assert isinstance(result, OpResult)
    assert (result.status, result.runs, result.us_per_run) == ("ok", runs, us)
    assert result.gflops == pytest.approx(gflops)


def test_perf_of_an_op_without_a_count_of_operations():
    line = "  CPY(type_src=f32):          8184 runs -   143.27 us/run -    98304 kB/run - \x1b[1;34m 654.31 GB/s\x1b[0m"
    result = parse_line(line)
    assert isinstance(result, OpResult)
    assert (result.case, result.us_per_run, result.gb_per_s, result.gflops) == (
        "CPY(type_src=f32)",
        143.27,
        654.31,
        None,
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("  3993/3994 tests passed", OpsSummary(3993, 3994)),
        ("Backend 1/2: CUDA0", Backend("CUDA0")),
        ("  Device description: NVIDIA H200", Backend("", "NVIDIA H200")),
        (f"  Backend CUDA0: {FAIL}", Backend("CUDA0", ok=False)),
        ("fattn-probe: missing symbol: _Z19ggml_cuda_op_concat", Missing("_Z19ggml_cuda_op_concat")),
        ('fattn-probe: finding: {"kind": "race", "message": "m"}', {"kind": "race", "message": "m"}),
        ("fattn-probe: finding: {half", {"kind": "unreadable", "message": "{half"}),
        ("1/2 backends passed", None),
        ("ggml_cuda_init: found 1 CUDA devices (Total VRAM: 143156 MiB):", None),
        ("Failing tests:", None),
        (f"  {C}", None),
        ("", None),
    ],
)
def test_other_lines(line, expected):
    assert parse_line(line) == expected


def test_transcript_keeps_description_backends_and_order():
    transcript = Transcript(report := OpsReport(()))
    for line in f"""Testing 2 devices

Backend 1/2: CUDA0
  Device description: NVIDIA H200
  Device memory: 143156 MB (142000 MB free)

  {A}: {OK}
[FLASH_ATTN_EXT] ERR = 0.5 > 0.0005   {C}: {FAIL}
  1/2 tests passed

Failing tests:
  {C}
  Backend CUDA0: {FAIL}
Backend 2/2: CPU
  Skipping
1/2 backends passed
{FAIL}""".splitlines():
        transcript.feed(line)
    assert [result.status for result in report.results] == ["ok", "fail"]
    assert (report.description, report.backends) == ("NVIDIA H200", ["CUDA0", "CPU"])
    assert report.summary == OpsSummary(1, 2)


def test_with_workers_a_message_may_come_on_anothers_line():
    transcript = Transcript(report := OpsReport(()))
    transcript.feed(f"[FLASH_ATTN_EXT] ERR = 0.5 > 0.0005   {A}: {OK}")
    transcript.feed(f"  {C}: {FAIL}")
    first, second = report.results
    assert (first.status, first.message, first.error) == ("ok", "", None)
    assert (second.status, second.error) == ("fail", 0.5)


@given(st.lists(st.sampled_from(["  ", A, ": ", "OK", "FAIL", "ERR = 1.", "5 > ", "7 runs - ", "us/run", "[", ")"])))
def test_no_mixture_of_pieces_breaks_the_parser(pieces):
    result = parse_line("".join(pieces))
    assert result is None or (isinstance(result, OpResult) and result.case)


ERA_A = (Path(__file__).parent / "usage_a.txt").read_text()
EARLY_C = ERA_A.replace("[--show-coverage]", "[--show-coverage] [--test-file <path>]")
LATE_C = (Path(__file__).parent / "usage_c.txt").read_text()


@pytest.mark.parametrize(
    ("text", "workers", "test_file"), [(ERA_A, False, False), (EARLY_C, False, True), (LATE_C, True, True)]
)
def test_the_options_of_each_era_are_read(text, workers, test_file):
    options = probe_options(text)
    assert options.modes == {"test", "grad", "perf", "support"}
    assert {"-o", "-b", "-p", "--output"} <= options.flags
    assert (options.workers, "--test-file" in options.flags) == (workers, test_file)


def test_what_a_program_cannot_do_is_refused():
    with pytest.raises(BuildError, match="not the usage text"):
        probe_options("usage: ls")
    with pytest.raises(InputError, match="--filter"):
        plan_ops(probe_options(ERA_A), "test", "CUDA0", "hsk=(64")
    with pytest.raises(InputError, match="mode 'support'"):
        plan_ops(probe_options(ERA_A.replace("- support", "")), "support", "CUDA0")


def test_plans():
    old, new = probe_options(ERA_A), probe_options(LATE_C)
    start = ("-b", "CUDA0", "-o", "FLASH_ATTN_EXT")
    assert plan_ops(new, "test", "CUDA0", workers=8) == ("test", *start, "-j", "8")
    assert plan_ops(old, "test", "CUDA0", workers=8) == ("test", *start)
    assert plan_ops(new, "perf", "CUDA0", "hsk=64", workers=8) == ("perf", *start, "-p", "hsk=64")
    assert plan_ops(new, "test", "CPU", "FLASH_ATTN_EXT(hsk=64)") == (
        "test",
        "-b",
        "CPU",
        "-o",
        "FLASH_ATTN_EXT(hsk=64)",
    )


def test_usage_printed_for_an_unknown_help_flag(tmp_path):
    program = executable(tmp_path / "test-backend-ops", f"#!/bin/sh\ncat <<'EOF'\n{EARLY_C}EOF\nexit 1\n")
    assert "--test-file" in ask_options(program, {}).flags
