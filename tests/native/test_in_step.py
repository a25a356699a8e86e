"""Attention kernels compute the same bits whether lanes run ahead, as they do in release builds, or stay in step."""

import numpy as np
import pytest

from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.scenario import expand, load
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.machine.run.capture import Capture
from tests.made import SCENARIOS

NIGHT = pytest.mark.night  # a kernel is compiled for each
PLAIN = {"FATTN_PROBE_SIM_IN_STEP": "1", "FATTN_PROBE_SIM_PORTABLE": "1"}

pytestmark = [pytest.mark.build, pytest.mark.network]


def output(session, case, device):
    capture = session.capture(case, make_inputs(case), parse_target(f"sim:{device}", load_devices()))
    assert isinstance(capture, Capture), capture
    return capture.dst


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("h200", "gqa"),
        *(pytest.param("h200", name, marks=NIGHT) for name in ("mha", "mla", "softcap", "sinks", "prefill")),
        *(pytest.param(device, "gqa", marks=NIGHT) for device in ("rtx2060", "rtx4070", "a100", "rtx5090")),
    ],
)
def test_bits_do_not_depend_on_how_the_simulator_runs(session, monkeypatch, device, name):
    case = expand(load(SCENARIOS / f"{name}.yaml"))[0]
    fast = output(session, case, device)
    for variable, value in PLAIN.items():
        monkeypatch.setenv(variable, value)
    np.testing.assert_array_equal(output(session, case, device).view(np.uint32), fast.view(np.uint32))
