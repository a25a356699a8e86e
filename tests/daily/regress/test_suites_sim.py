"""Suites on the simulator, as a person starts, kills and interrupts them."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from fattn_probe.llama.source import DEFAULT_SOURCE
from tests.as_user import HEEDING_HANGUPS
from tests.made import ROOT

pytestmark = [pytest.mark.build, pytest.mark.network]
SUITE = ROOT / "suites/upstream.yaml"


def regress(*words, history, wait=True, suite=SUITE):
    command = [sys.executable, "-m", "fattn_probe", "regress", *map(str, (suite, *words)), "--history", str(history)]
    running = subprocess.Popen(
        [*HEEDING_HANGUPS, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    if not wait:
        return running
    out, said = running.communicate(timeout=900)
    return running.returncode, out, said


def count(history):
    try:
        with closing(sqlite3.connect(history)) as database, database:
            return database.execute("SELECT count(*) FROM results").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


def until(condition):
    for _ in range(6000):
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError("it did not come to that")


def children(pid):
    """The command lines of all descendants of a process, by their number."""
    parents, words = {}, {}
    for entry in Path("/proc").iterdir():
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            words[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (ValueError, OSError):
            continue
    found: dict = {}
    more = {pid}
    while more := {child for child, parent in parents.items() if parent in more}:
        found |= {child: words[child] for child in more if child in words}
    return found


NIGHT = pytest.mark.night  # upstream's program, which lists the cases, and ggml's CPU backend are compiled
PART = r"hsk=64,.*nr23=\[4,1\],kv=512,nb=3,mask=1,sinks=.,max_bias=0"  # 36 cases of one kernel, 4 not supported


@NIGHT  # CI has upstream's program as a stand-in in test_drive.py
def test_a_part_of_the_list_runs_and_is_judged(tmp_path):
    code, out, said = regress("--on", "sim:h200", "--filter", PART, "--json", history=tmp_path / "h.db")
    (run,) = json.loads(out)["runs"]
    assert code == 0, said
    assert run["counts"] == {"pass": 32, "fail": 0, "unjudged": 0, "unsupported": 4, "lost": 0, "not run": 0}
    assert run["identity"]["source"] == DEFAULT_SOURCE
    result = next(result for result in run["results"] if result["status"] == "pass")
    assert result["name"].startswith("FLASH_ATTN_EXT(hsk=64,")
    assert result["metrics"]["nmse"] < 1e-4
    assert any(kernel.startswith("flash_attn_ext_f16<64,64,") for kernel in result["launches"])
    assert result["seconds"] == []


def test_a_suite_of_a_build_for_a_debugger_ends(tmp_path):
    """Dry runs name single kernels, and such a build has whole cases: `regress` waited for kernels that never came."""
    suite = tmp_path / "debug.yaml"
    scenario = os.path.relpath(ROOT / "scenarios/gqa.yaml", tmp_path)
    suite.write_text(f"version: 1\nabout: x\nscenarios: [{scenario}]\nflavour: debug\ncheck: {{model: never}}\n")
    code, out, said = regress("--on", "sim:h200", "--json", history=tmp_path / "h.db", suite=suite)
    assert (code, json.loads(out)["runs"][0]["counts"]["pass"]) == (0, 1), said


def test_a_crash_costs_its_own_case(tmp_path):
    suite = tmp_path / "crash.yaml"
    folder = os.path.relpath(ROOT / "scenarios", tmp_path)
    files = "\n".join(f"  - {folder}/{name}.yaml" for name in ("gqa", "known-faults/k-stride", "sinks", "unaligned"))
    suite.write_text(f"version: 1\nabout: one crashes\nscenarios:\n{files}\n")
    code, out, _ = regress("--workers", "1", "--json", history=tmp_path / "h.db", suite=suite)
    (run,) = json.loads(out)["runs"]
    status = {result["name"]: result["status"] for result in run["results"]}
    assert status == {"gqa": "pass", "k-stride": "fail", "sinks": "pass", "unaligned": "pass"}
    reason = next(result["reason"] for result in run["results"] if result["name"] == "k-stride")
    assert reason.startswith("misaligned: ")
    assert code == 0  # the crash is a known defect of llama.cpp


@NIGHT  # CI has test_resume.py, and test_signals.py
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 4), (signal.SIGHUP, 129)])
def test_a_signal_leaves_what_was_done_and_resume_goes_on(tmp_path, number, code):
    history = tmp_path / "h.db"
    one = ("--workers", 1)  # so that it has not ended when the signal comes
    running = regress("--on", "sim:h200", "--filter", PART, *one, history=history, wait=False)
    until(lambda: count(history) > 6)
    started = children(running.pid)
    os.killpg(running.pid, number)
    out, said = running.communicate(timeout=60)
    assert running.returncode == code
    assert "cases left; --resume continues with them" in said
    assert "not run" in out
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
    before = count(history)
    code, out, said = regress("--on", "sim:h200", "--filter", PART, "--resume", "--json", history=history)
    (run,) = json.loads(out)["runs"]
    assert (code, run["counts"]["not run"]) == (0, 0), said
    assert before < count(history) == 36
