"""The simulator compared with a real H200: launches and bits of every shipped scenario."""

from pathlib import Path

import pytest

from fattn_probe.compare.judge.agreement import agreement, read_recording
from fattn_probe.device import load_devices, parse_target
from fattn_probe.run.capture import Capture
from fattn_probe.run.prepare import prepare
from fattn_probe.scenario import expand, load
from fattn_probe.scenario.inputs import make_inputs
from fattn_probe.source import ggml_types, template_parameters

RECORDING = Path(__file__).parent / "data/h200"
SCENARIOS = Path(__file__).parent.parent / "scenarios"
FAULTS = [SCENARIOS / f"known-faults/{name}.yaml" for name in ("masked-rows", "q8-race")]
FILES = [*sorted(SCENARIOS.glob("*.yaml")), *FAULTS]  # what the recording has
CASES = [case for path in FILES for case in expand(load(path))]
H200 = parse_target("sim:h200", load_devices())
# Those of `scripts/test`: their kernels are those of other fast tests, and a vec kernel.
FAST = ("gqa", "sinks", "unaligned", "masked-rows", "decode")

pytestmark = [pytest.mark.build, pytest.mark.network]


@pytest.fixture(scope="module")
def recorded(tree):
    return read_recording(RECORDING, ggml_types(tree), template_parameters(tree))[1]


def marks(case):
    return [] if case.name in FAST else [pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def kernels(session, selected_cases):
    """One parallel build of all kernels."""
    prepare(session, [(case, [H200]) for case in selected_cases])


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name, marks=marks(case)) for case in CASES])
def test_simulated_h200_is_the_h200(case, session, recorded):
    there = recorded[case.name]
    assert there.digest == case.digest, "the scenario has changed: record it again (scripts/agreement)"
    here = session.capture(case, make_inputs(case), H200)
    assert isinstance(here, Capture), here
    found = agreement(there, here.dst, here.launches)
    assert here.launches == there.launches
    assert found.nmse <= 1e-12
    # 1.0 with g++ 12; another compiler may fuse other multiply-adds
    assert found.share >= 0.97
