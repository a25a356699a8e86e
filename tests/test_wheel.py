"""The installed wheel: an empty environment, an empty folder, and the commands that a newcomer types first.

The cache is that of all tests: builds do not depend on the environment, so none is compiled again.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PARTS = ("fattn_probe", "scenarios", "suites", "patches", "docs", "pyproject.toml", "README.md", "LICENSE")
PIP = (sys.executable, "-m", "pip")
CLIENT = """\
from fattn_probe.cases.scenario import Case, expand, load
from fattn_probe.cases.shipped import find

cases: list[Case] = expand(load(find("scenario", "gqa")))
reveal_type(cases[0].name)
"""
pytestmark = [pytest.mark.slow, pytest.mark.network]


def checked(command, cwd, **environment):
    """A program's output, without PYTHONPATH, so that nothing comes from the checkout; it may write bytecode."""
    dropped = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    inherited = {name: value for name, value in os.environ.items() if name not in dropped} | environment
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=inherited, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, built in a copy, since setuptools would include the files of an old `build/`."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, copy / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    checked([*PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", out, "."], copy)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The Python of an environment with only the wheel and its requirements."""
    folder = tmp_path_factory.mktemp("venv")
    checked([sys.executable, "-m", "venv", "--without-pip", folder], folder)  # ours stands in: a copy takes seconds
    checked([*PIP, "--python", folder, "install", "--quiet", "--no-compile", wheel], folder)
    return folder / "bin/python"


@pytest.fixture
def probe(python, tmp_path):
    """Run a command of the installed program in an empty folder."""
    return lambda *words: checked([python.parent / "fattn-probe", *words], tmp_path)


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    files = [path for path in (ROOT / "fattn_probe").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    with zipfile.ZipFile(wheel) as packed:
        assert {str(path.relative_to(ROOT)) for path in files} - set(packed.namelist()) == set()


def test_names_are_found(probe):
    assert "known-faults/k-stride" in probe("scenario", "list")
    assert Path(re.search(r"explained in (.*\.md), step", "".join(probe("glossary", "seam").splitlines()))[1]).is_file()
    assert {item["name"] for item in json.loads(probe("suite", "list", "--json"))} >= {"quick", "nightly", "upstream"}
    assert "fault-stream-k-seam" in probe("patch", "list")
    assert json.loads(probe("patch", "list", "--faults", "--json"))[0].keys() >= {"name", "catch", "shows"}


@pytest.mark.build
@pytest.mark.gdb
def test_demo(probe):
    printed = probe("demo")
    for line in ("$ fattn-probe run gqa", "$ fattn-probe compare gqa", "$ fattn-probe inspect gqa", "coverage: pass"):
        assert line in printed
    assert "\x1b" not in printed


@pytest.mark.build
def test_regress(probe):
    words = ("regress", "quick", "--filter", "^unaligned$", "--history", "history.db", "--json")
    # On an H200, and on one of five SMs (of a file beside the suite).
    assert [run["counts"]["pass"] for run in json.loads(probe(*words))["runs"]] == [1, 1]


@pytest.mark.build
def test_a_debug_build_and_a_patch(probe):
    assert json.loads(probe("build", "--debug", "gqa", "--engine", "sim", "--json"))["flavour"] == "debug"
    words = ("--patch", "fault-stream-k-seam", "--engine", "sim", "--dry-run", "--json")
    assert json.loads(probe("build", *words))["commands"]


@pytest.mark.build
def test_two_environments_share_a_build(probe):
    """The build that the checkout made needs nothing in the wheel's environment: no object, no link."""
    words = ("build", "gqa", "--engine", "sim", "--json")
    checked([sys.executable, "-m", "fattn_probe", *words], ROOT)
    assert json.loads(probe(*words))["objects"] is None


def test_pip_install_into_a_folder(wheel, python, tmp_path):
    """`pip install --target` has no place for data files."""
    target = tmp_path / "target"
    checked([*PIP, "--python", python, "install", "--quiet", "--no-deps", "--target", target, wheel], tmp_path)
    program = "from fattn_probe.cases.shipped import files; print(*files('scenario'), *files('suite'), *files('patch'))"
    for path in checked([python, "-c", program], tmp_path, PYTHONPATH=str(target)).split():
        assert Path(path).is_relative_to(target)


def test_the_types_of_the_wheel_are_seen(python, tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "client.py").write_text(CLIENT)
    said = checked([sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "client.py"], tmp_path)
    assert re.search(r'Revealed type is "(builtins\.)?str"', said)
