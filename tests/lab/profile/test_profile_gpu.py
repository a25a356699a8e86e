"""A GPU's counters beside the simulator's."""

import json

import pytest

from tests.as_user import fattn_probe

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["gqa", "mla"])
def test_a_gpu_and_its_simulation_count_the_same_instructions(name):
    done = fattn_probe("profile", name, "--on", "gpu,sim:h200", "--json")
    gpu, sim = (profile["launches"][0]["counts"] for profile in json.loads(done.stdout)["profiles"])
    for key in ("tensor", "ldmatrix", "copies"):
        assert gpu[key] == sim[key]
    assert sim["load_sectors"] == pytest.approx(gpu["load_sectors"], rel=0.02)
