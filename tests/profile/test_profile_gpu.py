"""A GPU's counters beside the simulator's."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["gqa", "mla"])
def test_a_gpu_and_its_simulation_count_the_same_instructions(name):
    command = [sys.executable, "-m", "fattn_probe", "profile", name, "--on", "gpu,sim:h200", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    gpu, sim = (profile["launches"][0]["counts"] for profile in json.loads(done.stdout)["profiles"])
    for key in ("tensor", "ldmatrix", "copies"):
        assert gpu[key] == sim[key]
    assert sim["load_sectors"] == pytest.approx(gpu["load_sectors"], rel=0.02)
