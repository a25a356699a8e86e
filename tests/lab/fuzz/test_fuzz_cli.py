"""`fattn-probe fuzz`, as a user runs it."""

import json

import pytest

from fattn_probe.cases.scenario import load
from tests.cli.test_cli import probe


@pytest.mark.build
@pytest.mark.slow
@pytest.mark.network
def test_a_planted_fault_is_found_shrunk_and_shown_by_its_scenario(tmp_path):
    patch = ("--patch", "fault-tail-queries")
    folder = tmp_path / "findings"
    words = ("fuzz", "--cases", "2", "--seed", "41", "--new-kernels", "0", *patch, "--findings", str(folder), "--json")
    found = json.loads(probe(*words, code=5).stdout)
    assert found["cases"] == 2
    (file, *_) = sorted(folder.glob("*.yaml"))
    assert any(item["family"] == "mma_f16" and "out-of-bounds" in item["what"] for item in found["findings"])
    for item in found["findings"]:
        if item["family"] == "mma_f16" and "out-of-bounds" in item["what"]:
            assert item["scenario"].keys() <= {"hsk", "hsv", "n_head", "n_head_kv", "n_q", "n_kv", "mask", "layout"}
    assert load(file).device == "sim:h200"
    probe("compare", str(file), *patch, code=5)
