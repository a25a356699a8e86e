"""Clang's machine code for AMD GPUs, as tinygrad's emulator ran it (scripts/second-opinion), beside the simulator."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.scenario.cases import cases_of
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.machine.run.prepare import prepare
from fattn_probe.verdict.measure.metrics import digest_of, nmse
from fattn_probe.verdict.truth.reference.adapter import reference_of
from maintain.amd_launches import launches
from tests.made import captured

DATA = Path(__file__).parent / "data/amd"
CASES = {case.name: case for case in cases_of([DATA])}
GPUS = {"gfx942": "mi300x", "gfx1100": "rx7900xtx", "gfx1201": "rx9070xt"}
RECORDED = {gfx: json.loads((DATA / f"{gfx}.json").read_text())["cases"] for gfx in GPUS}
ALL = [(gfx, name) for gfx, cases in RECORDED.items() for name in cases]
PAGE = (DATA.parents[2] / "docs/measurements/second-opinion.md").read_text()
ROW = re.compile(r"^\| ([\w-]+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)


def output(gfx, name, change=""):
    return np.load(DATA / f"{gfx}.npz")[f"{name}/{change}" if change else name]


def change_of(gfx, name):
    """With which change the machine code was run again; empty if it was not."""
    return max(RECORDED[gfx][name]["sha256"])


def plain(kernel):
    return {"kernel": kernel.name, "grid": list(kernel.grid), "block": list(kernel.block), "shared": kernel.dynamic}


@pytest.mark.parametrize(("gfx", "name"), ALL)
def test_a_recording_is_the_answer_of_its_case(gfx, name):
    case, recorded = CASES[name], RECORDED[gfx][name]
    assert recorded["digest"] == case.digest
    for change, sha256 in recorded["sha256"].items():
        assert sha256 == digest_of(output(gfx, name, change))
        assert nmse(output(gfx, name, change), reference_of(case.op, make_inputs(case))) < 3e-6


@pytest.mark.parametrize(("gfx", "name"), ALL)
def test_the_launches_are_those_of_the_second_reading(gfx, name, tree):
    at = dict.fromkeys(("Q", "K", "V", "mask", "dst", "partial", "meta"), 0)
    found = launches(CASES[name].op, gfx, tree.root / "ggml", at)
    assert [plain(kernel) for kernel in found] == RECORDED[gfx][name]["launches"]


def test_the_page_says_how_many_numbers_of_each_launch_are_equal():
    """The simulator computes the last of a case's outputs (below)."""
    cells = {}
    for gfx, name in ALL:
        change = change_of(gfx, name)
        same = output(gfx, name).view(np.uint32) == output(gfx, name, change).view(np.uint32)
        assert same.all() != bool(change)
        cells[gfx, name] = f"{same.sum()} of {same.size}: {change}" if change else f"all {same.size}"
    rows = {(name, *(cells[gfx, name] for gfx in GPUS)) for name in CASES}
    assert rows | {("launch", *GPUS), ("---",) * 4} == set(ROW.findall(PAGE))


@pytest.mark.build
@pytest.mark.network
@pytest.mark.parametrize(
    ("gfx", "name"),  # another GPU is the host code once more, and each other launch a kernel
    [pytest.param(*it, marks=() if it == ("gfx942", "mma") else pytest.mark.night) for it in ALL],
)
def test_the_simulator_gives_every_bit_of_the_machine_code(gfx, name, session):
    case, target = CASES[name], parse_target(f"sim:{GPUS[gfx]}", load_devices())
    prepare(session, [(case, [target])])
    capture = captured(session, case, target)
    assert digest_of(capture.dst) == RECORDED[gfx][name]["sha256"][change_of(gfx, name)]
    found = [
        {"kernel": one.spelling, "grid": list(one.grid), "block": list(one.block), "shared": one.shared}
        for one in capture.launches
    ]
    assert found == RECORDED[gfx][name]["launches"]
