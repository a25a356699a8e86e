"""The rounding models equal a real H200's outputs of the shipped scenarios in every bit; builds nothing."""

from dataclasses import replace

import numpy as np
import pytest

from fattn_probe.cases.scenario import expand, load
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.verdict.measure.metrics import nmse
from fattn_probe.verdict.truth.reference.adapter import reference_of
from fattn_probe.verdict.truth.rounding_model import arithmetic
from fattn_probe.verdict.truth.rounding_model.functions import LOG2_E
from maintain.agreement import agreement, read_recording
from tests.made import ROOT
from tests.verdict.truth.models import model_of

RECORDED = read_recording(ROOT / "tests/data/h200", None, None)[1]
FAULTS = [ROOT / f"scenarios/known-faults/{name}.yaml" for name in ("masked-rows", "q8-race")]
FILES = [*sorted((ROOT / "scenarios").glob("*.yaml")), *FAULTS]
CASES = {case.name: case for path in FILES for case in expand(load(path)) if case.name in RECORDED}
LARGE = 6e8  # floating-point operations


def marks(case):
    return [pytest.mark.night] if case.op.sizes.flop > LARGE else []


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(case)) for name, case in CASES.items()])
def test_every_bit_is_the_h200_s(name):
    case, recorded = CASES[name], RECORDED[name]
    found = model_of(case, make_inputs(case), recorded.launches, 90)
    assert found is not None
    assert agreement(recorded, found, recorded.launches).all_bits


def test_correctly_rounded_powers_of_two_come_close(monkeypatch):
    """The hardware's exponential is within 2 ulp: few P round to another f16, little beside the kernel's own noise."""
    case, recorded = CASES["gqa"], RECORDED["gqa"]
    inputs = make_inputs(case)
    model = model_of(case, inputs, recorded.launches, 90)
    rounded = lambda x: np.exp2((x * LOG2_E).astype(np.float64)).astype(np.float32)  # noqa: E731
    monkeypatch.setattr(arithmetic, "NVIDIA", replace(arithmetic.NVIDIA, exp=rounded))
    near = model_of(case, inputs, recorded.launches, 90)
    share = np.mean(model.view(np.uint32) == near.view(np.uint32))
    assert 0.05 < share < 0.95
    noise = nmse(model, reference_of(case.op, inputs))
    assert nmse(near, model.astype(np.float64)) < 0.02 * noise


def test_no_model_of_an_unknown_kernel():
    case = CASES["gqa"]
    assert model_of(case, make_inputs(case), RECORDED["gqa"].launches[1:], 90) is None
