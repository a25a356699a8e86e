"""Clang's machine code for AMD GPUs, as tinygrad's emulator ran it (scripts/second-opinion), beside the simulator."""

import json
from pathlib import Path

import numpy as np
import pytest

from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.scenario.files import cases_of
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.machine.run.capture import Capture
from fattn_probe.machine.run.prepare import prepare
from fattn_probe.verdict.measure.metrics import digest_of, nmse
from fattn_probe.verdict.truth.reference.adapter import reference_of
from maintain.amd_launches import launches

DATA = Path(__file__).parent / "data/amd"
CASES = {case.name: case for case in cases_of([DATA])}
GPUS = {"gfx942": "mi300x", "gfx1100": "rx7900xtx", "gfx1201": "rx9070xt"}
RECORDED = {gfx: json.loads((DATA / f"{gfx}.json").read_text())["cases"] for gfx in GPUS}
ALL = [(gfx, name) for gfx, cases in RECORDED.items() for name in cases]
# The same arithmetic in both, so that every bit is; the mma kernels wait for matrix instructions that sum alike.
EQUAL = [("gfx942", "vec"), ("gfx942", "tile"), ("gfx942", "tile-alibi")]


def output(gfx, name):
    return np.load(DATA / f"{gfx}.npz")[name]


def plain(kernel):
    return {"kernel": kernel.name, "grid": list(kernel.grid), "block": list(kernel.block), "shared": kernel.dynamic}


@pytest.mark.parametrize(("gfx", "name"), ALL)
def test_a_recording_is_the_answer_of_its_case(gfx, name):
    case, recorded = CASES[name], RECORDED[gfx][name]
    assert recorded["digest"] == case.digest
    assert recorded["sha256"] == digest_of(output(gfx, name))
    assert nmse(output(gfx, name), reference_of(case.op, make_inputs(case))) < 3e-6


@pytest.mark.parametrize(("gfx", "name"), ALL)
def test_the_launches_are_those_of_the_second_reading(gfx, name, tree):
    at = dict.fromkeys(("Q", "K", "V", "mask", "dst", "partial", "meta"), 0)
    found = launches(CASES[name].op, gfx, tree.root / "ggml", at)
    assert [plain(kernel) for kernel in found] == RECORDED[gfx][name]["launches"]


def test_three_architectures_and_three_families_are_recorded():
    kernels = {
        (gfx, recorded["launches"][0]["kernel"].split("<")[0]) for gfx in GPUS for recorded in RECORDED[gfx].values()
    }
    assert len(kernels) == 9
    assert len(ALL) >= 12


@pytest.mark.build
@pytest.mark.network
@pytest.mark.parametrize(("gfx", "name"), EQUAL)
def test_the_simulator_gives_every_bit_of_the_machine_code(gfx, name, session):
    case, target = CASES[name], parse_target(f"sim:{GPUS[gfx]}", load_devices())
    prepare(session, [(case, [target])])
    capture = session.capture(case, make_inputs(case), target)
    assert isinstance(capture, Capture)
    assert digest_of(capture.dst) == RECORDED[gfx][name]["sha256"]
    found = [
        {"kernel": one.spelling, "grid": list(one.grid), "block": list(one.block), "shared": one.shared}
        for one in capture.launches
    ]
    assert found == RECORDED[gfx][name]["launches"]
