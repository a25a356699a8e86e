"""An uninitialised cache: huge values in KV rows that the mask hides do not switch the verdict off."""

from dataclasses import replace

import numpy as np
import pytest

from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.scenario import Scenario, expand
from fattn_probe.machine.run.capture import Capture, inputs_of
from fattn_probe.verdict.judge.cases import Answers, judged, judged_case
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.measure.verdict import Status

HIDDEN = 64
TARGET = parse_target("sim:h200", load_devices())
ENTRY = {"version": 1, "about": "x", "hsk": 128, "n_head": 8, "n_head_kv": 2, "n_q": 1, "n_kv": 512}


def uninitialised(inputs, case):
    """The inputs with 1e30 in one value in 50 of K's hidden rows."""
    view = case.op.tensors["K"]
    data = inputs[view.root].copy()
    rows = data.view(np.uint16).reshape(-1, case.op.sizes.n_kv, case.op.sizes.hsk)
    hidden = rows[:, -HIDDEN:]
    hidden[np.random.default_rng(3).random(hidden.shape) < 0.02] = np.float32(1e30).view(np.uint32) >> 16
    return {**inputs, view.root: data}


def run(session, n_q, model):
    """The case with its capture; its inputs hold the huge values."""
    mask = {"kind": "masked_tiles", "trailing": HIDDEN}
    entry = ENTRY | {"n_q": n_q, "type_K": "bf16", "type_V": "bf16", "mask": mask}
    (case,) = expand(Scenario.model_validate(entry).named("hidden"))
    with inputs_of(case) as inputs:
        found = judged_case(session, Answers(case, uninitialised(inputs, case)), TARGET, Checks(model=model))
        capture = found.run()
        assert isinstance(capture, Capture)
        return found, capture


@pytest.mark.build
@pytest.mark.parametrize("model", ["never", "always"])
def test_huge_values_in_hidden_rows_of_k_hide_no_wrong_output(session, model):
    case, capture = run(session, 1, model)
    found = judged(case, capture)
    assert found.status is Status.PASS, found.reason
    assert found.verdict.design is not None and found.verdict.design.rmse_by_predicted < 2
    for dst in (2 * capture.dst, 0 * capture.dst, capture.dst + np.float32(1)):
        assert judged(case, replace(capture, dst=dst)).status is Status.FAIL


@pytest.mark.build
def test_a_kernel_that_makes_infinities_of_hidden_rows_fails(session):
    case, capture = run(session, 2, "always")  # two queries take mma, which converts K to f16
    found = judged(case, capture)
    assert found.status is Status.FAIL and "NaN" in found.reason
