"""CUDA's headers at both ends of the ranges of pyproject.toml, and mixed: the same output, bit for bit.

PyTorch pins the runtime's patch level, so the other two may be of other versions.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from fattn_probe.base.cache import cache_dir
from fattn_probe.llama.build.headers import HEADERS
from tests.made import ROOT

REQUIRED = {
    requirement.name: requirement.specifier
    for requirement in map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    if requirement.name in HEADERS
}
OLDEST = {name: f"=={min(Version(part.version) for part in range)}" for name, range in REQUIRED.items()}
NEWEST = {name: str(range) for name, range in REQUIRED.items()}
RUNTIME = "nvidia-cuda-runtime"
ENDS = {
    "oldest": OLDEST,
    "newest": NEWEST,
    "newest runtime": OLDEST | {RUNTIME: NEWEST[RUNTIME]},
    "oldest runtime": NEWEST | {RUNTIME: OLDEST[RUNTIME]},
}


def test_every_wheel_of_headers_has_a_range():
    assert REQUIRED.keys() == HEADERS.keys()
    for range in REQUIRED.values():
        assert sorted(part.operator for part in range) == ["<", ">="]


@pytest.fixture(scope="module")
def output_of(tmp_path_factory):
    """The hash of gqa's output with wheels of these versions, and the name of their copy in a cache of its own."""

    def run(wheels):
        folder = tmp_path_factory.mktemp("wheels")
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder / "site"]
        subprocess.run([*install, *(name + range for name, range in wheels.items())], check=True)
        shutil.copytree(cache_dir() / "sources", folder / "cache/sources")
        path = os.pathsep.join([str(ROOT), str(folder / "site")])
        environment = {**os.environ, "PYTHONPATH": path, "FATTN_PROBE_CACHE": str(folder / "cache")}
        command = [sys.executable, "-m", "fattn_probe", "compare", "gqa", "--on", "sim:h200", "--json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        (row,) = json.loads(done.stdout)["rows"]
        (copy,) = (path for path in (folder / "cache/headers").iterdir() if path.is_dir())
        shutil.rmtree(folder / "cache")
        return row["output"], copy.name

    return run


@pytest.fixture(scope="module")
def usual(output_of):
    return output_of(OLDEST)


@pytest.mark.build
@pytest.mark.network
@pytest.mark.night
@pytest.mark.parametrize("name", ENDS)
def test_the_ends_of_the_ranges_give_the_same_output(name, usual, output_of):
    output, copy = output_of(ENDS[name])
    assert output == usual[0]
    assert (copy == usual[1]) == (name == "oldest")
