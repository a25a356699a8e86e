"""The scripts, as they are started from a clone."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.made import ROOT, executable

SCRIPTS = ROOT / "scripts"
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
    command = [sys.executable, str(ROOT / "scripts/detection"), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "quick --sample 1500",
        "nightly --amd --results docs/measurements/amd-mutants.jsonl.gz",
        pytest.param("quick upstream nightly --sample 570", marks=pytest.mark.night),
    ],
)
def test_the_table_follows_from_the_verdicts(words):
    """Verdicts that no longer hold for a suite, because a hash has changed, count as open."""
    command = [sys.executable, str(ROOT / "scripts/detection"), "mutants", *words.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=True)
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    page = (ROOT / "docs/measurements/detection.md").read_text()
    assert len(rows) == 9 + ("--amd" in words)  # mma.cuh too
    assert [row for row in rows if row not in page] == []
