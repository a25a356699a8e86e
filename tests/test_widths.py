"""Tables in terminals of 60, 80 and 120 columns: verdict, kernel and numbers are there, and nothing is cut."""

import io
import re

import pytest
from rich.console import Console

from fattn_probe.compare.judge.judgement import Judgement
from fattn_probe.compare.judge.verdict import Status, Verdict
from fattn_probe.compare.present.tables import render as render_compare
from fattn_probe.device import load_devices
from fattn_probe.device.show import render_list, render_show
from fattn_probe.doctor.report import Engine
from fattn_probe.inspect.view.show import render as render_facts
from fattn_probe.launch.record import parse_launch
from fattn_probe.regress.records import Identity, Result, Run, StoredCase
from fattn_probe.regress.runner import Outcome
from fattn_probe.regress.tables import render as render_regress
from fattn_probe.regress.tables import render_results, render_runs
from fattn_probe.regress.work_map import work_facts
from fattn_probe.run.command import Done, render_plan, render_run
from fattn_probe.run.outcome import Ran
from fattn_probe.scenario import expand, loads
from fattn_probe.scenario.command import Listing
from fattn_probe.scenario.command import render_list as render_scenarios
from fattn_probe.scenario.command import render_show as render_case
from fattn_probe.scenario.schema import Tolerance
from fattn_probe.source.command import SourceRow
from fattn_probe.source.command import render_list as render_sources
from fattn_probe.study.command import Options, study_case
from fattn_probe.study.show import render as render_study

KERNEL = "flash_attn_ext_vec<128,1,GGML_TYPE_F16,GGML_TYPE_F16,false>"
MMA = "flash_attn_ext_f16<64,64,8,2,false,false,false>"
SIZES = '"grid":[1,11,32],"block":[32,4,1],"shared":17536,"regs":168,"max_blocks_per_sm":2'
LAUNCH = f'{{"order":0,"kernel":"{KERNEL}",{SIZES}}}'
(CASE,) = expand(loads("version: 1\nabout: x\nhsk: 64\nn_head: 2\nn_head_kv: 1\nn_q: 3\nn_kv: 32\n", "case.yaml"))
SIM = Identity("here", "sim:h200", "9.0", "", "sim", "release", "pypi:xllamacpp==2026.10.11549", "11549", "", "0.1.0")
RUN = Run(1, "0123456789abcdef", SIM, "nightly", "2026-11-22T01:13:00", None)
RESULT = Result("decode-hsk=128-n_kv=4096", "d", "fail", "NMSE 1.2e-3 is over 1e-5", launches=LAUNCH)
ENGINES = (Engine("sim", True, ("sim:h200",)), Engine("cuda", False, (), ("no GPU",)))
VERDICT = Verdict(Status.FAIL, "wrong: 32 of 96 rows")


def plan():
    return [Done(CASE, "sim:rtx4070", Ran(None, (parse_launch(LAUNCH),), "", 0.1))]


def inspected():
    launch = LAUNCH.replace(KERNEL, MMA).replace("[1,11,32]", "[1,1,1]")
    facts = work_facts(StoredCase.of(CASE), Result("case", "d", "pass", launches=launch), SIM)
    assert facts is not None
    return render_facts(facts)


SHOWN = {
    "inspect": (inspected, [MMA, "scenario on sim:h200", "Division of work", "1 CUDA block on"]),
    "regress": (
        lambda: render_regress([Outcome(RUN, {RESULT.name: RESULT}, None, (), 1)]),
        ["1 fail", RESULT.name, RESULT.reason, SIM.source],
    ),
    "study": (
        lambda: render_study(study_case(CASE, "fa2", Options()), 4),
        ["FlashAttention-2", "Schedule", "Slow memory, in elements", "All algorithms on this head"],
    ),
    "run": (lambda: render_run(plan()), [KERNEL, "1x11x32", "32x4x1", "17536 B", "sim:rtx4070"]),
    "plan": (lambda: render_plan(plan()), [KERNEL, "1x11x32", "32x4x1", "17536 B", "168", "sim:rtx4070"]),
    "compare": (
        lambda: render_compare([Judgement("decode", "sim:h200", Tolerance(), VERDICT, (parse_launch(LAUNCH),))]),
        [*KERNEL.replace("<", " <").split(), "fail", "decode", "sim:h200", "wrong: 32 of 96 rows"],
    ),
    "history list": (
        lambda: render_runs([(RUN, {"pass": 7, "fail": 2})]),
        ["01234567", "7 pass", "2 fail", SIM.source],
    ),
    "history show": (lambda: render_results([RESULT]), [KERNEL, "fail", RESULT.name, RESULT.reason]),
    "device list": (lambda: render_list(load_devices()), ["NVIDIA H200", "139.8", "228/227"]),
    "device show": (lambda: render_show(load_devices()["h200"]), ["multiProcessorCount", "132"]),
    "scenario list": (
        lambda: render_scenarios([Listing("gqa", "gqa.yaml", "7 queries, 14 heads sharing 2 K/V heads", 1, "")]),
        ["gqa", "7 queries, 14 heads sharing 2 K/V heads"],
    ),
    "scenario show": (lambda: render_case([CASE]), ["{64, 3, 2, 1}", "mask", CASE.digest]),
    "source list": (
        lambda: render_sources([SourceRow(SIM.source, "11549", True, True, "/home/me/.cache/" + "x" * 60, "d")]),
        [SIM.source, "11549", "/home/me/.cache/" + "x" * 60],
    ),
}


def printed(value, width):
    console = Console(file=(out := io.StringIO()), width=width)
    console.print(value)
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("command", SHOWN)
def test_everything_is_there_at_any_width(command, width):
    make, wanted = SHOWN[command]
    text = printed(make(), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    closed = re.sub(r"\s", "", text)
    for words in wanted:
        assert re.sub(r"\s", "", words) in closed
    assert "\x1b" not in text


def test_a_verdict_comes_first_where_the_terminal_is_narrow():
    make, _ = SHOWN["compare"]
    assert printed(make(), 60).splitlines()[0] == "fail  decode, sim:h200"
