"""A wrong output that no cause predicts is run once more; a second run with other bits is a race."""

import numpy as np
import pytest

from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.machine.run.capture import Capture
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.verdict.judge.cases import Answers, explained, judged_case
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.measure.verdict import judge
from fattn_probe.verdict.truth.reference.adapter import reference_of
from tests.made import H200
from tests.planted import case_of
from tests.stand_in import StandIn


class Again(StandIn):
    """A session that has an output in another order of warps only."""

    options = RunOptions(None)

    def __init__(self, dst):
        self.dst = dst

    def reordered(self, number):
        return Reordered(self.dst)


class Reordered(Again):
    def capture(self, case, inputs, target, part=None):
        return Capture(case.name, case.digest, case.op, inputs, self.dst, (), "wall", (), "CUDA", "sim", {})


@pytest.fixture(scope="module")
def wrong():
    case = case_of(512)
    inputs = make_inputs(case)
    reference = reference_of(case.op, inputs)
    noise = 0.01 * np.random.default_rng(0).standard_normal(reference.shape)

    def diagnosed(dst, *, again):
        subject = judged_case(Again(again), Answers(case, inputs), H200, Checks())
        found = explained(subject, judge(dst, reference, case.tolerance), dst)
        return [said.cause.kind for said in found.causes]

    return reference.astype(np.float32), noise.astype(np.float32), diagnosed


def test_a_race_is_said(wrong):
    right, noise, diagnosed = wrong
    assert diagnosed(right + noise, again=right - noise) == ["nondeterministic"]


def test_an_output_that_is_always_the_same_is_no_race(wrong):
    right, noise, diagnosed = wrong
    assert diagnosed(right + noise, again=right + noise) == []


def test_a_cause_that_predicts_the_output_needs_no_second_run(wrong):
    right, noise, diagnosed = wrong
    assert diagnosed(right * np.float32(0.75), again=right - noise) == ["output-scale"]


def test_a_session_takes_another_order_of_warps_each_time():
    session = Session(RunOptions(None))
    assert [session.reordered(number).options.simulation.schedule for number in (1, 2)] == [1, 2]
    assert session.reordered(1).reordered(1).options.simulation.schedule == 2
