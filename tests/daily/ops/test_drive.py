"""The runs of upstream's program, which here is a script, and the lines that it prints."""

import io
import json
import re
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fattn_probe.base.errors import BuildError, ComparisonError, InputError, LostError, TimedOutError
from fattn_probe.cli import setup
from fattn_probe.cli.setup import build_progress
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
from fattn_probe.daily.ops.render import live, render
from fattn_probe.daily.ops.rounds import Timeouts, drive, portions, run_ops
from fattn_probe.llama.build.ninja import Progress
from fattn_probe.machine.run.outcome import Missing
from tests.made import executable

PATIENT = Timeouts(30.0, 60.0)
FAKE = """#!PYTHON
import os, sys, time
mode, how = sys.argv[1], os.environ.get("HOW", "well")
if mode == "--help":
    print("Usage: x [mode] [-o <op,..>] [-b <backend>] [-p <params regex>] [-j <n>]")
    print("  - test (a)\\n  - perf (b)\\n  - support (c)")
    sys.exit(1)
def say(text):
    print(text, flush=True)
say("Testing 1 devices\\n\\nBackend 1/1: CUDA0")
if "CUDA0" not in sys.argv:
    say("  Skipping\\n1/1 backends passed")
    sys.exit(0)
say("  Device description: Fake GPU\\n")
wanted = sys.argv[sys.argv.index("-o") + 1]
names = [f"FLASH_ATTN_EXT(hsk={n},nr23=[1,1])" for n in (64, 80, 96) if "nothing" not in sys.argv]
cases = [f"  {name}: " for name in names if "(" not in wanted or name in wanted]
if mode == "support":
    for case in cases:
        say(case + "\\033[1;32mSUPPORTED\\033[0m")
    sys.exit(0)
if mode == "perf":
    for case in cases:
        say(case + "      48 runs - 22984.44 us/run - 503.32 MFLOP/run - \\033[1;34m 21.90 GFLOPS\\033[0m")
    sys.exit(0)
for case in cases:
    second = "hsk=80" in case
    if how == "dies early":
        sys.exit(3)
    if second and how == "abort":
        print("/src/fattn.cu:12: GGML_ABORT(fatal error)", file=sys.stderr, flush=True)
        os.abort()
    if second and how == "CUDA error":
        print("CUDA error: an illegal memory access was encountered", file=sys.stderr)
        print("  current device: 0, in function synchronize at /src/ggml-cuda.cu:2982", file=sys.stderr)
        print("/src/ggml-cuda.cu:90: CUDA error", file=sys.stderr)
        for frame in range(60):
            print(f"#{frame}  0x00007f2bc116064b in some_function () from /b/libggml-base.so.0", file=sys.stderr)
        print("[Inferior 1 (process 14224) detached]", file=sys.stderr, flush=True)
        os.abort()
    if second and how == "checker":
        print('fattn-probe: finding: {"kind": "out-of-bounds", "message": "read past K"}', file=sys.stderr, flush=True)
        os._exit(86)
    if second and how == "missing":
        print("fattn-probe: missing symbol: _Z3foov", file=sys.stderr, flush=True)
        os._exit(87)
    if second and how == "hang":
        time.sleep(60)
    if second and how == "killed":
        os.kill(os.getpid(), 9)
    wrong = second and how == "wrong"
    say(("[FLASH_ATTN_EXT] ERR = 0.25 > 0.0005 " if wrong else "") + case + ("FAIL" if wrong else "OK"))
    time.sleep(float(os.environ.get("PAUSE", 0)))
say(f"  {len(cases) - (how == 'wrong')}/{len(cases)} tests passed")
sys.exit(how == "wrong")
"""


@pytest.fixture
def program(tmp_path):
    return executable(tmp_path / "test-backend-ops", FAKE.replace("PYTHON", sys.executable))


CASE = "FLASH_ATTN_EXT(hsk={},nr23=[1,1])"


def run(
    program, *, mode="test", how="well", timeouts=PATIENT, only=None, backend="CUDA0", workers=1, complete=None, **env
):
    seen = []
    report = run_ops(
        program,
        mode,
        backend,
        only=only,
        env={"HOW": how, **env},
        timeouts=timeouts,
        on_result=lambda result, total: seen.append((result.case, total)),
        workers=workers,
        complete=complete,
    )
    return report, seen


def test_results_come_one_by_one_and_a_wrong_case_is_a_failed_comparison(program):
    report, seen = run(program)
    assert seen == [(f"FLASH_ATTN_EXT(hsk={n},nr23=[1,1])", 3) for n in (64, 80, 96)]
    assert (report.counts["ok"], report.summary.passed, report.description) == (3, 3, "Fake GPU")
    assert report.problem() is None
    assert json.loads(json.dumps(report.as_dict()))["counts"]["ok"] == 3
    report, _ = run(program, how="wrong")
    assert report.failures[0].error == 0.25 and not report.stopped
    problem = report.problem()
    assert isinstance(problem, ComparisonError) and "1 of 3 cases failed" in str(problem)


ILLEGAL = "CUDA error: an illegal memory access was encountered"


@pytest.mark.parametrize(
    ("how", "ending", "stopped", "kind"),
    [
        ("abort", ("fail", "/src/fattn.cu:12: GGML_ABORT(fatal error)"), "killed by SIGABRT", ComparisonError),
        ("CUDA error", ("fail", ILLEGAL), "killed by SIGABRT", ComparisonError),
        ("checker", ("fail", "out-of-bounds: read past K"), "exit status 86", ComparisonError),
        ("killed", ("lost", "killed by SIGKILL"), "killed by SIGKILL", LostError),
    ],
)
def test_a_program_that_dies_is_started_again_after_the_case_in_flight(program, how, ending, stopped, kind):
    report, seen = run(program, how=how)
    assert [case for case, _ in seen] == [CASE.format(64), CASE.format(96)]
    second = report.results[1]
    assert (second.case, second.status, second.message) == (CASE.format(80), *ending)
    assert (report.summary.passed, report.summary.total) == (2, 3)
    assert (report.stopped, report.crashes) == ("", (stopped,)) and isinstance(report.problem(), kind)
    assert report.finding == ({"kind": "out-of-bounds", "message": "read past K"} if how == "checker" else None)


def test_one_worker_alone_finds_what_crashes_and_a_program_that_always_dies_is_started_once_a_case(program):
    report, _ = run(program, how="abort", workers=2)
    assert [result.status for result in report.results] == ["ok", "fail", "ok"]
    assert report.results[1].case == CASE.format(80) and report.crashes == ("killed by SIGABRT",) * 2
    report, _ = run(program, how="dies early")
    assert report.counts["fail"] == 3 and report.crashes == ("exit status 3",) * 3


def test_a_missing_symbol_is_for_the_caller_to_build_who_is_asked_once(program):
    report, _ = run(program, how="missing")
    assert report.missing == "_Z3foov" and report.counts["fail"] == report.counts["lost"] == 0
    assert isinstance(report.problem(), BuildError)
    complete = Mock(return_value=program)
    report, _ = run(program, how="missing", complete=complete)
    complete.assert_called_once_with("_Z3foov")
    assert report.missing == "_Z3foov"


def changed(program, old, new):
    return executable(program.with_name("better"), program.read_text().replace(old, new))


def test_a_missing_function_is_compiled_and_a_test_is_prepared_once_with_all_its_cases(program):
    complete = Mock(return_value=changed(program, 'how == "missing"', "False"))
    report, seen = run(program, how="missing", complete=complete)
    complete.assert_called_once_with("_Z3foov")
    assert [case for case, _ in seen] == [CASE.format(n) for n in (64, 80, 96)]
    assert report.counts["ok"] == 3 and not report.missing and report.problem() is None
    prepare = Mock(return_value=changed(program, "Fake GPU", "Better GPU"))
    report = run_ops(program, "test", "CUDA0", env={}, timeouts=PATIENT, on_result=Mock(), prepare=prepare)
    prepare.assert_called_once_with([CASE.format(number) for number in (64, 80, 96)])
    assert (report.description, report.counts["ok"]) == ("Better GPU", 3)


def test_cases_are_split_to_fit_an_argument():
    assert [len(group) for group in portions(["a" * 40, "b" * 40, "c" * 40], 100)] == [2, 1]


def test_silence_ends_a_case_as_lost_and_the_overall_limit_counts_through_live_output(program):
    report, _ = run(program, how="hang", timeouts=Timeouts(silence=1.0))
    assert (report.results[1].status, report.crashes) == ("lost", ("no output for 1 s",))
    assert isinstance(report.problem(), LostError) and not report.timed_out
    report, seen = run(program, timeouts=Timeouts(silence=30.0, overall=1.0), PAUSE="0.7")
    assert 1 <= len(seen) < 3
    assert report.stopped == "timed out after 1 s"
    assert report.timed_out and isinstance(report.problem(), TimedOutError)


def test_perf(program):
    report, seen = run(program, mode="perf")
    assert [result.us_per_run for result in report.results] == [22984.44] * 3
    assert seen[0][1] == 0


def test_running_no_case_is_an_error(program):
    with pytest.raises(InputError, match="selects no FLASH_ATTN_EXT case"):
        run(program, only="nothing")
    with pytest.raises(LostError, match=r"no backend CUDA7 \(it has: CUDA0\)"):
        run(program, backend="CUDA7")


def test_a_program_that_never_reached_its_device_is_lost_and_one_that_is_not_there_an_error(tmp_path):
    script = "#!/bin/sh\necho 'error while loading shared libraries: libcudart.so.13'\nexit 127\n"
    report = drive((str(executable(tmp_path / "broken", script)),), {}, PATIENT, lambda result, total: None)
    assert (report.results[0].status, report.stopped) == ("lost", "exit status 127")
    assert "libcudart.so.13" in str(report.problem())
    with pytest.raises(BuildError, match="could not be run"):
        drive((str(tmp_path / "no"),), {}, Timeouts(), lambda result, total: None)


def test_report_for_people(program):
    console = Console(width=150, color_system=None)
    with console.capture() as capture:
        with live(console) as show:
            report = run_ops(program, "test", "CUDA0", env={"HOW": "wrong"}, timeouts=Timeouts(), on_result=show)
        console.print(render(report))
        console.print(render(run(program, mode="perf")[0]))
    text = capture.get()
    assert "Fake GPU: 2 ok, 1 fail in" in text
    assert "fail: FLASH_ATTN_EXT(hsk=80,nr23=[1,1])\n  [FLASH_ATTN_EXT] ERR = 0.25 > 0.0005" in text
    assert "22984.44" in text


def test_a_pipe_shows_a_long_build_once_a_minute(monkeypatch):
    monkeypatch.setattr(setup, "MINUTE", 0.0)
    build = build_progress(Console(file=(out := io.StringIO()), width=40, color_system=None))
    build(Progress(40, 63, "fattn.cu", 200.0, 120.0))
    monkeypatch.setattr(setup, "MINUTE", 60.0)
    build(Progress(41, 63, "fattn.cu", 201.0, 119.0))
    assert out.getvalue() == "building: 63 steps\nbuilding: 40 of 63 steps, 3:20, about 2:00 left\n"


def test_a_terminal_shows_builds_and_results_on_one_line_that_is_updated():
    console = Console(file=(out := io.StringIO()), force_terminal=True, width=120, color_system=None)
    with live(console) as show:
        build = build_progress(console)
        build(Progress(1, 2, "fattn.cu", 3.0))
        build(Progress(2, 2, "link", 4.0))
        show(OpResult(CASE.format(64), "fail", ""), 9)
    title, first, built, result, *cleared = re.split(r"[\r\n]+", out.getvalue())
    assert title == "building: 2 steps"
    assert " 1/2 0:03 fattn.cu" in first and " 2/2 0:04 link" in built
    assert " 1/9 0:00 1 failed, hsk=64" in result
    assert cleared == ["\x1b[2K", ""]


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
    result = parse_line(f"sentinel mismatch: sent_1 [FLASH_ATTN_EXT] ERR = 0.25 > 0.0005   {B}: {FAIL}")
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
def test_figures_of_perf(ending, runs, us, gflops):
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
