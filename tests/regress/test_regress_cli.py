"""Nights of a regression, as a cron job runs them."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCENARIOS = Path(__file__).parents[2] / "scenarios"
PADDED = """version: 1
about: four sequences whose masks lie apart
hsk: 64
n_head: 16
n_head_kv: 2
n_q: 3
n_kv: 256
n_seq: 4
mask: {kind: causal}
layout: {mask: {pad: 64}}
tolerance: {nmse: 1e-5}
"""
EARLIER, LATER = "pypi:xllamacpp==2026.9.11063", "pypi:xllamacpp==2026.10.11549"

pytestmark = [pytest.mark.build, pytest.mark.network]


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "padded.yaml").write_text(PADDED)
    path = tmp_path / "nights.yaml"
    path.write_text(f"version: 1\nabout: two cases\nscenarios: [{SCENARIOS}/gqa.yaml, padded.yaml]\n")
    return path


def probe(*words, history):
    command = [sys.executable, "-m", "fattn_probe", *map(str, words), "--history", str(history)]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.slow
def test_three_nights(suite, tmp_path):
    """One source, then the next, then a fault: the exit codes are 0, 0 and 6, and the third night names what broke."""
    history = tmp_path / "history.db"
    first = probe("regress", suite, "--source", EARLIER, "--accept", "the first", "--json", history=history)
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["runs"][0]["counts"]["pass"] == 2
    second = probe("regress", suite, "--source", LATER, history=history)
    assert second.returncode == 0, second.stderr
    assert f"({EARLIER})" in second.stdout
    summary = tmp_path / "summary.md"
    words = ("--source", LATER, "--patch", "fault-mask-stride", "--markdown", summary)
    third = probe("regress", suite, *words, history=history)
    assert third.returncode == 6
    assert "padded: new failure: was pass: " in third.stderr
    assert "gqa: " not in third.stderr
    assert "| padded | new failure |" in summary.read_text()
    listed = json.loads(probe("history", "list", "--json", history=history).stdout)
    assert [run["counts"] for run in listed] == [{"pass": 2}, {"pass": 2}, {"pass": 1, "fail": 1}]


def test_a_run_that_is_killed_can_be_resumed(tmp_path):
    suite, history = tmp_path / "many.yaml", tmp_path / "history.db"
    suite.write_text(f"version: 1\nabout: many\nscenarios: ['{SCENARIOS}/gqa.yaml', '{SCENARIOS}/s*.yaml']\n")
    suite.write_text(suite.read_text().replace(str(SCENARIOS), os.path.relpath(SCENARIOS, tmp_path)))
    command = [sys.executable, "-m", "fattn_probe", "regress", str(suite), "--history", str(history)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    count = wait_for_results(history, 2)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    with sqlite3.connect(history) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        before = database.execute("SELECT name, at FROM results").fetchall()
        assert len(before) >= count
    again = probe("regress", suite, "--resume", "--json", history=history)
    (run,) = json.loads(again.stdout)["runs"]
    assert run["counts"]["not run"] == 0
    with sqlite3.connect(history) as database:
        assert database.execute("SELECT count(*) FROM runs").fetchone() == (1,)
        assert set(before) <= set(database.execute("SELECT name, at FROM results").fetchall())


def wait_for_results(history, count):
    for _ in range(600):
        time.sleep(0.1)
        if history.exists():
            with sqlite3.connect(history) as database:
                if database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'results'").fetchone()[0]:
                    (found,) = database.execute("SELECT count(*) FROM results").fetchone()
                    if found >= count:
                        return found
    raise AssertionError("no results came")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: 1\nabout: x\nscenarios: [nothing/*.yaml]\n", "no scenario matches 'nothing/*.yaml'"),
        ("version: 1\nabout: x\nscenario: [a.yaml]\n", ":3: scenario: Extra inputs are not permitted"),
        ("version: [\n", "not YAML"),
    ],
)
def test_a_suite_with_a_mistake(tmp_path, text, said):
    path = tmp_path / "suite.yaml"
    path.write_text(text)
    done = probe("regress", path, history=tmp_path / "history.db")
    assert done.returncode == 2
    assert said in done.stderr


def test_a_history_that_is_not_there(tmp_path):
    done = probe("history", "list", history=tmp_path / "none.db")
    assert done.returncode == 2
    assert "there is no history" in done.stderr
