"""How far a run is: the simulator's blocks, the rate of earlier runs, and the line that shows both."""

import io
import itertools
import struct
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path

import pytest
from rich.console import Console

from fattn_probe.base.cache import write_document
from fattn_probe.cases.op import Sizes
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.machine.run import progress
from fattn_probe.machine.run.outcome import Lost, Ran
from fattn_probe.machine.run.progress import LaunchProgress, RunProgress, Watch, rate_of
from tests.made import H200, shipped

SIZES = Sizes(n_seq=1, n_head=32, n_head_kv=8, n_q=1, n_kv=40960, hsk=128, hsv=128)


def test_the_time_left_follows_from_the_blocks_of_the_launch_in_progress():
    launch = LaunchProgress()
    assert launch.left(1.0, 0, 100) is None
    assert launch.left(10.0, 20, 100) == pytest.approx(40.0)
    assert launch.left(49.0, 98, 100) == pytest.approx(1.0)
    assert launch.left(50.0, 1, 8) == pytest.approx(7.0), "the second began after 49 s"


def test_a_watched_run_reports_its_blocks(cache, monkeypatch):
    monkeypatch.setattr(progress, "POLL_SECONDS", 0.01)
    reports: list = []
    watch = Watch(reports.append)

    def execute():
        with Path(watch.env[progress.BLOCKS_ENV]).open("r+b", buffering=0) as file:
            file.write(struct.pack("=QQ", 3, 7))
        while not any(report.done for report in reports):
            pass
        return Lost("x")

    assert watch.run("decode on sim:h200", "sim", SIZES, 1, execute) == Lost("x")
    assert (reports[0].seconds, reports[0].blocks, reports[0].left) == (0.0, 0, None)
    assert {(report.done, report.blocks) for report in reports} >= {(3, 7)}
    assert reports[-1].ended


def test_the_rate_of_a_long_run_is_for_the_next_one(cache):
    reports: list = []
    for seconds, outcome in ((100.0, Ran), (1.0, Ran)):
        Watch(reports.append).run("a", "sim-h200", SIZES, 2, partial(outcome, None, (), "", seconds))
    assert rate_of("sim-h200") == pytest.approx(SIZES.flop * 2 / 100, rel=1e-5), "not that of a short run"
    first, second = [report.left for report in reports if not report.seconds]
    assert (first, second) == (None, pytest.approx(100, rel=1e-5))


@pytest.mark.parametrize("text", ["", "x", "nan", "-1", "inf", "0"])
def test_a_damaged_rate_is_none(text, cache):
    write_document(progress.RATES, "sim", text.encode())
    assert rate_of("sim") is None


def shown(seconds, *, terminal, **fields):
    """The line's text for a run that is reported at these times."""
    notes = Console(file=(out := io.StringIO()), force_terminal=terminal, width=200, color_system=None)
    report = progress.progress_line(notes)
    for second in seconds:
        report(RunProgress("decode on sim:h200", SIZES, float(second), **fields))
    return out.getvalue()


def test_a_pipe_gets_a_line_a_minute_and_a_terminal_one_that_is_rewritten():
    said = shown(itertools.chain(range(130), range(70)), terminal=False, done=40, blocks=132, left=90.0)
    assert said.splitlines() == [
        "decode on sim:h200: 40 of 132 blocks, 1:00, about 1:30 left",
        "decode on sim:h200: 40 of 132 blocks, 2:00, about 1:30 left",
        "decode on sim:h200: 40 of 132 blocks, 1:00, about 1:30 left",
    ]
    said = shown(range(5), terminal=True)
    assert said.count("\r") == 3 and said.count("\n") == 0, "none in the first seconds"
    assert "decode on sim:h200: 0:04" in said


def test_a_run_of_minutes_is_announced_once_with_a_smaller_case_and_not_by_its_first_seconds():
    assert shown(range(20), terminal=False, left=600.0) == (
        "decode on sim:h200 will take about 10:00. `fattn-probe plan` shows its kernels without running them; "
        "with `n_head: 4` and `n_head_kv: 1` (1/8 of the work) in the scenario, it takes less time.\n"
    )
    assert shown([1, 2, 3], terminal=False, left=600.0) == ""
    assert "will take about 10:06" in shown([6], terminal=False, left=600.0)
    assert progress.smaller_case(Sizes(n_seq=1, n_head=8, n_head_kv=1, n_q=1, n_kv=64, hsk=64, hsv=64)) == ""


@pytest.mark.build
@pytest.mark.network
def test_the_simulator_counts_its_blocks(session, monkeypatch):
    monkeypatch.setattr(progress, "LEAST_SECONDS", 1e9)  # the cache's rates stay as they are
    watch = Watch(lambda report: None)
    case = shipped("gqa")
    outcome = replace(session, watch=watch).run(case, make_inputs(case), H200)
    assert isinstance(outcome, Ran), outcome
    last = prod(outcome.launches[-1].grid)
    assert watch.blocks.read() == (last, last)
