"""The scripts, as they are started from a clone."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
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
        folder.mkdir(parents=True)
        python = folder / ("python" if name == "its" else "python3")
        python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit 1\necho {name} "$2"\n')
        python.chmod(0o755)
    if not has_venv:
        shutil.rmtree(tmp_path / ".venv")
    path = f"{folders['path']}:{os.environ['PATH']}"
    done = subprocess.run(
        [tmp_path / "scripts" / script.name, "two words"],
        cwd="/", env={"PATH": path}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"{'its' if has_venv else 'path'} two words\n"
    assert ("scripts/setup test" in done.stderr) == (not has_venv)
