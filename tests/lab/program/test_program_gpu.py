"""The programs on a real GPU: what they print and launch is what they print and launch on the simulated one."""

import json

import pytest

from .test_program import EVERY, program

pytestmark = pytest.mark.gpu
OTHER_WORDS = {"device_query", "streams"}
"""Programs that print figures of the GPU, or times."""


@pytest.mark.parametrize("path", EVERY)
def test_a_gpu_runs_it_as_the_simulator_does(path):
    gpu, sim = json.loads(program(path, "--on", "gpu,sim:h200", "--json").stdout)["runs"]
    assert gpu["exit_code"] == sim["exit_code"] == 0
    for run in (gpu, sim):
        run["launches"] = [(one["kernel"], one["grid"], one["block"], one["shared"]) for one in run["launches"]]
    assert gpu["launches"] == sim["launches"]
    if path.stem not in OTHER_WORDS:
        assert gpu["stdout"] == sim["stdout"]
