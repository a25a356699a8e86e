"""Tables in terminals of 60, 80 and 120 columns and in a pipe: verdict, kernel and numbers, and nothing is cut."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fattn_probe.base.console import width_for
from fattn_probe.cases.device import load_devices
from fattn_probe.cases.scenario.command import render_list as render_scenarios
from fattn_probe.cases.scenario.command import render_show as render_case
from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.cli.device import catalogue_table, device_table
from fattn_probe.daily.inspect.view.show import render as render_facts
from fattn_probe.daily.inspect.view.show import render_side_by_side, side_by_side
from fattn_probe.daily.ops.parse import OpResult, OpsReport
from fattn_probe.daily.ops.render import render as render_ops
from fattn_probe.daily.regress.plots import work_facts
from fattn_probe.daily.regress.records import Identity, Result, Run, StoredCase
from fattn_probe.daily.regress.runner import Outcome
from fattn_probe.daily.regress.tables import render as render_regress
from fattn_probe.daily.regress.tables import render_bisection, render_results, render_runs, render_versions
from fattn_probe.daily.regress.versions import Bisection, Versions
from fattn_probe.daily.triage.show import advice_of
from fattn_probe.daily.triage.show import render as render_triage
from fattn_probe.lab.study.command import StudyOptions, study_case
from fattn_probe.lab.study.precisions import VARIANTS, row_of
from fattn_probe.lab.study.show import render as render_study
from fattn_probe.lab.study.show import render_table3
from fattn_probe.llama.build.command import build_table
from fattn_probe.llama.build.key import Build
from fattn_probe.llama.launch.record import parse_launches
from fattn_probe.llama.source.command import render_list as render_sources
from fattn_probe.machine.run.command import Done, render_plan, render_run
from fattn_probe.machine.run.outcome import Finding, Ran
from fattn_probe.verdict.judge.judgement import Judgement
from fattn_probe.verdict.measure.verdict import Status, Verdict
from fattn_probe.verdict.present.tables import render as render_compare
from tests.as_user import completed, fattn_probe
from tests.daily.inspect.made_facts import gqa
from tests.daily.inspect.test_view import on_rtx4070
from tests.daily.triage.test_verdict import FLAGS, SAID
from tests.llama.build.test_key import MANIFEST
from tests.made import case_of, shown, target

GQA = "7 queries, 14 heads sharing 2 K/V heads"
KERNEL = "flash_attn_ext_vec<128,1,GGML_TYPE_F16,GGML_TYPE_F16,false>"
MMA = "flash_attn_ext_f16<64,64,8,2,false,false,false>"
SIZES = '"grid":[1,11,32],"block":[32,4,1],"shared":17536,"regs":168,"max_blocks_per_sm":2'
LAUNCH = f'{{"order":0,"kernel":"{KERNEL}",{SIZES}}}'
CASE = case_of("version: 1\nabout: x\nhsk: 64\nn_head: 2\nn_head_kv: 1\nn_q: 3\nn_kv: 32\n")
SIM = Identity("here", "sim:h200", "9.0", "", "sim", "release", "pypi:xllamacpp==2026.10.11549", "11549", "", "0.1.0")
RUN = Run(1, "0123456789abcdef", SIM, "nightly", "2026-11-22T01:13:00", None)
SCANNED = f"{LAUNCH.replace(KERNEL, 'flash_attn_mask_to_KV_max<1>')}\n{LAUNCH}"
RESULT = Result("decode-hsk=128-n_kv=4096", "d", "fail", "NMSE 1.2e-3 is over 1e-5", launches=SCANNED)
VERDICT = Verdict(Status.FAIL, "wrong: 32 of 96 rows")
JUDGED = Judgement("decode", "sim:h200", Tolerance(), VERDICT, parse_launches(LAUNCH))
STOPPED = Judgement("gqa", "sim:h200", Tolerance(), VERDICT, finding=Finding("race", "a byte is read", MMA))
BUILT = replace(MANIFEST, contents=replace(MANIFEST.contents, programs=()))
ROOT = "/home/me/.cache/" + "x" * 60
CACHED = {"spec": SIM.source, "build_number": "11549", "pinned": True, "default": True, "root": ROOT}
SOURCES = ("pypi:xllamacpp==2026.9.11063", SIM.source)
BEFORE = Result(RESULT.name, "d", "pass", metrics={"nmse": 1.29e-7}, output="00", launches=LAUNCH)
AFTER = Result(
    RESULT.name, "d", "fail", RESULT.reason, {"nmse": 1.2e-3}, "01", LAUNCH.replace(KERNEL, MMA), failure=RESULT.reason
)
OP = "FLASH_ATTN_EXT(hsk=128,hsv=128,nh=4,nr23=[4,1],kv=4096,nb=1,mask=1,sinks=0,max_bias=0.000000,type_K=q8_0)"


def plan():
    return [Done(CASE, target("sim:rtx4070"), Ran(None, parse_launches(LAUNCH), "", 0.1))]


def diff():
    return [Versions("sim:h200", SOURCES, {RESULT.name: BEFORE}, {RESULT.name: AFTER})]


def ops(**timed):
    results = (OpResult(OP, "ok", **timed), OpResult(OP, "fail", "ERR = 0.25 > 0.0005"))
    return render_ops(OpsReport((), results, None, "NVIDIA H200", 1.5, stopped="killed by SIGABRT"))


def inspected():
    launch = LAUNCH.replace(KERNEL, MMA).replace("[1,11,32]", "[1,1,1]")
    facts = work_facts(StoredCase.of(CASE), Result("case", "d", "pass", launches=launch), SIM)
    assert facts is not None
    return render_facts(facts)


SHOWN = {
    "inspect": (inspected, [MMA, "scenario on sim:h200", "Division of work", "1 block on"]),
    "regress": (
        lambda: render_regress([Outcome(RUN, {RESULT.name: RESULT}, None, (), 1)]),
        ["1 fail", RESULT.name, RESULT.reason, SIM.source],
    ),
    "inspect of two": (
        lambda: render_side_by_side(side_by_side(gqa(), on_rtx4070())),
        ["gqa on sim:h200", "gqa on sim:rtx4070", "nsm", "132", "46", "Division of work"],
    ),
    "diff": (
        lambda: render_versions(diff()),
        [RESULT.name, "new failure", KERNEL, MMA, f"old: {SOURCES[0]}", f"new: {SOURCES[1]}", "1.29e-07", "1.20e-03"],
    ),
    "bisect": (
        lambda: render_bisection(Bisection(((SOURCES[0], BEFORE), (SOURCES[1], AFTER)), (SOURCES[1],), AFTER)),
        [f"{SOURCES[0]}: pass", f"{SOURCES[1]}: fail", f"first bad source: {SOURCES[1]}", AFTER.reason],
    ),
    "ops": (ops, ["NVIDIA H200: 1 ok, 1 fail", f"fail: {OP}", "ERR = 0.25 > 0.0005", "killed by SIGABRT"]),
    "ops perf": (lambda: ops(us_per_run=12.34, gflops=5678.9, runs=100), [OP, "12.34", "5678.90", "100", "us/run"]),
    "build": (
        lambda: build_table(Build(Path("/home/me/.cache") / ("x" * 90), BUILT)),
        [BUILT.source, "/home/me/.cache/" + "x" * 90, "sm_90", *BUILT.contents.kernels],
    ),
    "study": (
        lambda: render_study(study_case(CASE, "fa2", StudyOptions()), 4),
        ["FlashAttention-2", "Schedule", "Slow memory, in elements", "All algorithms on this head"],
    ),
    "study of table 3": (
        lambda: render_table3(
            {"heads": 64, "queries": 256, "rows": 8448, "head_size": 128}
            | {"table": [row_of(name, [1e-4, 2e-4]) for name in VARIANTS]}
        ),
        ["Table 3", "FlashAttention-2 and 3, f16", "without block quantisation", "1.22e-02", "9.1e-03", "+35%"],
    ),
    "study with fp8": (
        lambda: render_study(study_case(CASE, "fa2", StudyOptions(fp8=True)), 4),
        ["Rounding", "without incoherent processing", "of RMS(O)"],
    ),
    "study of fa3": (
        lambda: render_study(study_case(CASE, "fa3", StudyOptions()), 4),
        ["Warpgroups", "products WG1", "softmax WG1", "setmaxnreg", "ping-pong", "Slots of"],
    ),
    "run": (lambda: render_run(plan()), [KERNEL, "1x11x32", "32x4x1", "17536 B", "sim:rtx4070"]),
    "plan": (lambda: render_plan(plan()), [KERNEL, "1x11x32", "32x4x1", "17536 B", "168", "sim:rtx4070"]),
    "compare": (
        lambda: render_compare([JUDGED, STOPPED]),
        [*f"{KERNEL} {MMA}".replace("<", " <").split(), "fail", "decode", "sim:h200", "wrong: 32 of 96 rows"],
    ),
    "triage": (
        lambda: render_triage(SAID["attention"][0], advice_of(SAID["attention"][0], *FLAGS), "out"),
        ["Attention is wrong on sim:h200", "1 fail", "6 correct", "--patch fault-many", "8 finite", "in out"],
    ),
    "history list": (
        lambda: render_runs([(RUN, {"pass": 7, "fail": 2})]),
        ["01234567", "7 pass", "2 fail", SIM.source],
    ),
    "history show": (lambda: render_results([RESULT]), [KERNEL, "fail", RESULT.name, RESULT.reason]),
    "device list": (lambda: catalogue_table(load_devices()), ["NVIDIA H200", "139.8", "228/227"]),
    "device show": (lambda: device_table(load_devices()["h200"]), ["multiProcessorCount", "132"]),
    "scenario list": (
        lambda: render_scenarios([{"name": "gqa", "about": GQA, "cases": 1, "problem": ""}]),
        ["gqa", GQA],
    ),
    "scenario show": (lambda: render_case([CASE]), ["{64, 3, 2, 1}", "mask", CASE.digest]),
    "source list": (lambda: render_sources([CACHED]), [SIM.source, "11549", ROOT]),
}


def has(text, wanted):
    """Whether the words are there, wherever the lines break; nothing may be cut, and there are no escape codes."""
    assert "…" not in text
    assert "\x1b" not in text
    closed = re.sub(r"\s", "", text)
    return [words for words in wanted if re.sub(r"\s", "", words) not in closed] == []


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("command", SHOWN)
def test_everything_is_there_at_any_width(command, width):
    make, wanted = SHOWN[command]
    text = shown(make(), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert has(text, wanted)


def test_a_pipe_has_120_columns(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert width_for(io.StringIO()) == 120


@pytest.mark.parametrize(
    ("command", "first"), [("compare", "fail  decode, sim:h200"), ("diff", "sim:h200"), ("regress", "sim:h200, ")]
)
def test_a_verdict_comes_first_where_the_terminal_is_narrow(command, first):
    lines = shown(SHOWN[command][0](), width=60).splitlines()
    assert lines[0].startswith(first)
    assert "fail" in "".join(lines[:3])


@pytest.mark.parametrize("columns", ["", "60"])
@pytest.mark.parametrize(
    "words",
    ["scenario list", "device list", "patch list --faults", "study gqa --algorithm fa2", "compare no-such-scenario"],
)
def test_the_command_itself_without_a_terminal(words, columns, monkeypatch):
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    done = completed(*words.split())
    assert done.returncode == (2 if "no-such" in words else 0), done.stderr
    assert has(done.stdout + done.stderr, [])
    assert (done.stdout + done.stderr).splitlines()[0]
    assert max(map(len, done.stdout.splitlines()), default=0) <= int(columns or 120)


@pytest.mark.build
@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("run", [MMA]),
        ("plan", [MMA]),
        ("compare", ["pass", MMA, "1 pass"]),
        ("inspect", [MMA, "coverage: pass", "Division of work"]),
    ],
)
def test_a_command_that_runs_kernels_where_columns_are_few(command, wanted, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    done = fattn_probe(command, "gqa", "--on", "sim:h200")
    assert has(done.stdout, [words.replace("8,2", "8,8") for words in wanted])
    assert has(done.stderr, [])
    assert max(map(len, done.stdout.splitlines())) <= 60
    assert not re.search(r"\d:\d\d", done.stderr), "no progress"
