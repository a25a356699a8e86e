"""The scripts, as they are started from a clone, and what `scripts/nightly` does with its words."""

import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from fattn_probe.cases.device import load_devices
from fattn_probe.daily.regress.history import open_history
from fattn_probe.daily.regress.records import Identity, Result
from fattn_probe.llama.source import DEFAULT_SOURCE
from maintain.matrix import RELEASES, from_json, part_of
from tests.as_user import completed
from tests.made import ROOT, executable
from tests.maintain.test_matrix import V100, record

SCRIPTS = ROOT / "scripts"
H200 = Identity("here", "sim:h200", "9.0", "", "sim", "release", RELEASES[0], "?", "", "0.1.0")


def nightly(*words):
    return completed(*words, script=SCRIPTS / "nightly", limit=3000)


def recorded(path, identity, *results):
    with open_history(path) as history:
        record(history, identity, results)
    return path


TRAP = Result("a", "d", "fail", "trap", known="volta-columns")


def test_histories_of_two_machines_make_one_page(tmp_path):
    one = recorded(tmp_path / "1.db", V100, TRAP, Result("b", "d", "pass"))
    two = recorded(tmp_path / "2.db", H200, Result("b", "d", "pass"))
    done = nightly("matrix", one, two, "--results", tmp_path / "m.json", "--to", tmp_path / "m.md")
    assert done.returncode == 0, done.stderr
    assert [cell.device for cell in from_json((tmp_path / "m.json").read_text())] == ["sim:h200", "sim:v100"]
    said = (tmp_path / "m.md").read_text()
    assert "| v100 | 7.0 | not run | 1, 1 known |" in said
    assert "| h200 | 9.0 | 1 | not run |" in said


def test_without_time_everything_is_left_but_what_the_history_has(tmp_path):
    done = nightly("devices", "--seconds", 0, "--history", recorded(tmp_path / "h.db", V100, TRAP), "--resume")
    assert done.returncode == 4
    runs = len(load_devices()) * len(RELEASES)
    assert f"devices: {runs - 1} of {runs} runs are left" in done.stderr
    assert f"{DEFAULT_SOURCE} sim:v100: 0, 1 known" in done.stdout


def test_a_part_of_the_releases_runs_each_night(tmp_path):
    done = nightly("releases", "--part", 3, "--parts", 14, "--seconds", 0, "--history", tmp_path / "h.db")
    assert done.returncode == 4
    number = len(part_of(3, 14))
    assert f"devices: {number} of {number} runs are left" in done.stderr


@pytest.mark.parametrize(("result", "code"), [(TRAP, 0), (Result("a", "d", "fail", "wrong"), 5)])
def test_only_what_is_not_explained_fails_the_matrix(tmp_path, result, code):
    history = recorded(tmp_path / "h.db", V100, result)
    done = nightly("devices", *("--on", "sim:v100", "--source", DEFAULT_SOURCE, "--history", history, "--resume"))
    assert done.returncode == code, done.stderr


@pytest.mark.build
@pytest.mark.network
def test_a_part_of_the_matrix_runs(tmp_path):
    words = ("--on", "sim:h200", "--source", DEFAULT_SOURCE, "--filter", "^gqa$", "--history", tmp_path / "h.db")
    done = nightly("devices", *words)
    assert done.returncode == 0, done.stderr
    assert f"{DEFAULT_SOURCE} sim:h200: 1\n" in done.stdout


COLLECTED = """
import pytest
class Marks:
    def pytest_collection_modifyitems(self, items):
        for item in items:
            print("marks:", *(mark.name for mark in item.iter_markers()))
pytest.main(["--collect-only", "-qs", "-p", "no:xdist", "-m", "hostile", "tests/hostile"], plugins=[Marks()])
"""


def test_the_hostile_runs_are_of_the_night():
    """So that none is of CI; the other tests of the night leave them out by their mark."""
    done = subprocess.run([sys.executable, "-c", COLLECTED], cwd=ROOT, capture_output=True, text=True, check=True)
    marks = [line.split() for line in done.stdout.splitlines() if line.startswith("marks:")]
    hostile = [names for names in marks if "hostile" in names]
    assert len(hostile) >= 450, "each test is a run"
    assert all("night" in names for names in hostile)


def test_a_part_without_tests_fails():
    """Pytest's exit code for no tests was all that showed it, and one for all skipped is 0."""
    done = nightly("sanitizers", "--only", "thread", "--filter", "no_test_has_this_name")
    assert (done.returncode, "sanitizer thread: 0 runs, 0 failed, 0 skipped" in done.stdout) == (5, True), done.stdout
    assert "sanitizer thread: no test ran" in done.stderr


@pytest.mark.build
@pytest.mark.night
@pytest.mark.parametrize("name", ["address", "thread", "undefined"])
def test_the_simulator_is_compiled_for_a_sanitizer(name):
    done = nightly("sanitizers", "--only", name, "--filter", "the_simulator_is_compiled_for")
    assert (done.returncode, f"sanitizer {name}: 1 run, 0 failed" in done.stdout) == (0, True), done.stdout


def test_every_reason_why_no_test_can_notice_a_change_is_about_a_line_of_a_module_that_is_changed():
    """The mutation tester says so too, after an hour, and not of a module that it no longer changes."""
    patterns = re.findall(r'"(fattn_probe/[^"]+)"', (ROOT / "tests/mutants/__main__.py").read_text())
    modules = {path for pattern in patterns for path in ROOT.glob(pattern)}
    assert {path.parent.name for path in modules} == {"base", "judge", "measure", "error_model"}
    assert "measure/limits" in (ROOT / "CONTRIBUTING.md").read_text()
    assert (ROOT / "fattn_probe/verdict/measure/limits.py").is_file()
    for entry in yaml.safe_load((ROOT / "tests/mutants/equivalent.yaml").read_text()):
        path = ROOT / entry["in"]
        assert path in modules, entry["in"]
        lines = [line.strip() for line in path.read_text().splitlines()]
        assert not [mutant["was"] for mutant in entry["mutants"] if mutant["was"] not in lines], entry["in"]


@pytest.mark.slow
def test_the_verdicts_tests_are_tested():
    pytest.importorskip("cosmic_ray")  # extra `mutants`
    done = nightly("verdict", "--in", "measure/limits", "--only", "return True|MODEL_LIMIT / spread")
    assert done.returncode == 0, done.stderr
    assert "of the others 2 noticed and 0 not: 100 %" in done.stdout


FIRST = {path: path.read_text().partition("\n")[0] for path in sorted(SCRIPTS.iterdir()) if path.is_file()}
PYTHON = [path for path, line in FIRST.items() if '/python"' in line]


def test_no_script_depends_on_an_active_environment():
    assert not [path.name for path, line in FIRST.items() if "env python" in line]
    assert {path.name for path in PYTHON} > {"budget", "detection", "support"}


@pytest.mark.parametrize("has_venv", [True, False])
@pytest.mark.parametrize("script", PYTHON, ids=lambda path: path.name)
def test_a_script_runs_with_the_environment_of_its_clone(tmp_path, script, has_venv):
    """From any folder, with arguments as they are; without a .venv it names the command that makes one."""
    (tmp_path / "scripts").mkdir()
    for path in (script, SCRIPTS / "python"):
        shutil.copy(path, tmp_path / "scripts")
    folders = {"its": tmp_path / ".venv/bin", "path": tmp_path / "path"}
    for name, folder in folders.items():
        python = folder / ("python" if name == "its" else "python3")
        executable(python, f'#!/bin/sh\n[ "$1" = -c ] && exit 1\necho {name} "$2"\n')
    if not has_venv:
        shutil.rmtree(tmp_path / ".venv")
    path = f"{folders['path']}:{os.environ['PATH']}"
    done = subprocess.run(
        [tmp_path / "scripts" / script.name, "two words"],
        cwd="/", env={"PATH": path}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"{'its' if has_venv else 'path'} two words\n"
    assert ("scripts/setup test" in done.stderr) == (not has_venv)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("choose", "--results", "/nosuch"), "--results /nosuch: there is no such file"),
        (("mutants", "quick", "--results", "/nosuch"), "--results /nosuch: there is no such file"),
        (("outputs", "quick", "--keep", "/tmp", "--results", "/nosuch"), "--results /nosuch: there is no such file"),
        (("page", "--results", "/nosuch"), "--results /nosuch: there is no such file"),
        (("faults", "shows", "--only", "nosuch"), "--only nosuch: the corpus has no such fault"),
        (("faults", "shows", "--catch", "luck"), "--catch luck: the corpus has no such fault"),
    ],
)
def test_wrong_input_is_refused(words, said):
    done = completed(*words, cwd=ROOT, script=SCRIPTS / "detection")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "quick --sample 1500",
        "nightly-amd --amd --results docs/measurements/amd-mutants.jsonl.gz",
        pytest.param("quick upstream nightly --sample 570", marks=pytest.mark.night),
    ],
)
def test_the_table_follows_from_the_verdicts(words):
    """Verdicts that no longer hold for a suite, because a hash has changed, count as open."""
    done = completed("mutants", *words.split(), cwd=ROOT, script=SCRIPTS / "detection")
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    page = (ROOT / "docs/measurements/detection.md").read_text()
    assert len(rows) == 9 + ("--amd" in words)  # mma.cuh too
    assert [row for row in rows if row not in page] == []
