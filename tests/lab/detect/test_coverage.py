"""`fattn-probe coverage`, as a user runs it."""

import json
import re

import pytest
import yaml

from fattn_probe.base.errors import InputError
from fattn_probe.daily.regress import entries
from fattn_probe.daily.regress.entries import Given
from fattn_probe.lab.detect.measure import on_simulated
from tests.cli.test_cli import probe


def suite(folder, *, on=("sim:h200",)):
    path = folder / "small.yaml"
    op = {"version": 1, "about": "vec", "hsk": 64, "n_head": 2, "n_kv": 256, "n_q": 1}
    (folder / "case.yaml").write_text(yaml.safe_dump(op))
    path.write_text(yaml.safe_dump({"version": 1, "about": "one", "scenarios": ["case.yaml"], "on": list(on)}))
    return path


def test_a_real_gpu_does_not_count(tmp_path):
    done = probe("coverage", str(suite(tmp_path)), "--on", "gpu", code=2)
    assert "only simulated GPUs (sim:ID) say what a case executes" in done.stderr


def test_a_real_gpu_that_only_the_suite_asks_for_is_left_out(tmp_path, monkeypatch):
    """`mutate nightly` and `coverage nightly` work on a machine with a GPU too."""
    monkeypatch.setattr(entries, "has_gpu", lambda: True)
    path = suite(tmp_path, on=["gpu?", "sim:h200"])
    assert [str(target) for _, target in on_simulated("mutate", path, Given())] == ["sim:h200"]
    with pytest.raises(InputError, match="only simulated GPUs"):
        on_simulated("mutate", path, Given("gpu,sim:h200"))


@pytest.mark.build
@pytest.mark.network
@pytest.mark.slow
def test_executed_and_other_lines_of_a_small_suite(tmp_path):
    page = tmp_path / "page.html"
    done = probe("coverage", str(suite(tmp_path)), "--html", str(page), "--json")
    (found,) = json.loads(done.stdout)["suites"]
    assert (found["cases"], found["lost"]) == (1, [])
    files = {file["file"]: file for file in found["files"]}
    vec = files["fattn-vec.cuh"]
    assert 0 < vec["lines"]["executed"] < vec["lines"]["of"]  # no ALiBi, no sinks
    assert 0 < vec["branches"]["executed"] < vec["branches"]["of"]
    assert files["fattn-tile.cu"]["lines"]["executed"] == 0
    executed = {item["function"] for item in found["instances"] if item["executed"]}
    assert any(re.fullmatch(r"flash_attn_ext_vec<64,1,.*,false>", name) for name in executed)
    assert not any(re.fullmatch(r"flash_attn_ext_vec<64,1,.*,true>", name) for name in executed)  # no softcap
    text = page.read_text()
    assert 'class="never"' in text
    assert "flash_attn_ext_vec" in text
    assert not re.search(r"<(?:script|link|img|iframe)\b", text)  # nothing is loaded
