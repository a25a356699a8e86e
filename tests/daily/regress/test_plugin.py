"""Scenarios as pytest items, as in another project's CI."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

SCENARIOS = Path(__file__).parents[3] / "scenarios"
UNSUPPORTED = "version: 1\nabout: x\nhsk: 192\nhsv: 128\nn_head: 8\nn_head_kv: 2\nn_q: 9\nn_kv: 512\n"


def run_pytest(folder, *words):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=folder)


@pytest.mark.build
@pytest.mark.network
def test_each_case_is_an_item_with_its_verdict(tmp_path):
    (tmp_path / "unsupported.yaml").write_text(UNSUPPORTED)
    files = (SCENARIOS / "gqa.yaml", SCENARIOS / "known-faults/masked-rows.yaml", tmp_path / "unsupported.yaml")
    done = run_pytest(tmp_path, *files, "--fattn-on", "sim:h200", "--junitxml", tmp_path / "out.xml")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith(".Fs")
    assert "wrong: flash_attn_ext_f16<64,64,32,1,false,false,false>" in done.stdout
    assert "Traceback" not in done.stdout
    cases = {case.get("name"): case for case in ET.parse(tmp_path / "out.xml").getroot().iter("testcase")}
    assert set(cases) == {"gqa[sim:h200]", "masked-rows[sim:h200]", "unsupported[sim:h200]"}
    assert cases["unsupported[sim:h200]"].find("skipped") is not None


def test_without_devices_no_yaml_is_touched(tmp_path):
    (tmp_path / "other.yaml").write_text("not: [a, scenario")
    assert "no tests ran" in run_pytest(tmp_path, tmp_path).stdout


def test_a_mistake_in_a_scenario_is_reported_once(tmp_path):
    (tmp_path / "bad.yaml").write_text("version: 1\nabout: x\nhsk: 64\nn_haed: 8\n")
    done = run_pytest(tmp_path, tmp_path / "bad.yaml", "--fattn-on", "sim:h200")
    assert done.returncode != 0
    assert "bad.yaml:4: n_haed" in done.stdout + done.stderr


STAND_IN = """
import pytest
from fattn_probe.daily.regress import results
from fattn_probe.daily.regress.records import Result
from fattn_probe.machine.run import prepare as preparing

def prepare(session, work):
    print("prepared", *(case.name for case, _ in work))

preparing.prepare = prepare
results.result_of = lambda session, case, target: print("ran", case.name) or Result(case.name, "", "pass")
"""


def test_the_kernels_of_all_items_are_compiled_before_the_first_runs(tmp_path):
    (tmp_path / "conftest.py").write_text(STAND_IN)
    (tmp_path / "heads.yaml").write_text(UNSUPPORTED + "matrix: {n_q: [1, 2, 3]}\n")
    without = ("--deselect", "heads.yaml::heads-n_q=2[sim:h200]")
    done = run_pytest(tmp_path, "heads.yaml", "--fattn-on", "sim:h200", "-s", *without)
    assert re.findall("(?:prepared|ran) heads.*", done.stdout) == [
        "prepared heads-n_q=1 heads-n_q=3",
        "ran heads-n_q=1",
        "ran heads-n_q=3",
    ]
