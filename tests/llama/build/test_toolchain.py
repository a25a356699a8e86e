"""Where the compilers and headers come from; CUDA's headers at both ends of their ranges give the same output."""

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
from fattn_probe.base.errors import BuildError
from fattn_probe.daily.doctor.facts import headers_here
from fattn_probe.llama.build import headers, toolchain
from fattn_probe.llama.build.headers import HEADERS, Headers, find_headers
from fattn_probe.llama.build.toolchain import cached_headers, find_cublas, find_toolchain, has_cublas, library_path
from tests.made import ROOT, executable


def toolkit(folder, version=13000, listed=""):
    """A CUDA toolkit, as far as builds of the simulator need it."""
    for file in HEADERS.values():
        (folder / "include" / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / "include" / file).write_text(f"#define CUDART_VERSION {version}\n")
    if listed:
        (folder / "version.json").write_text(f'{{"cuda_cudart": {{"name": "CUDA", "version": "{listed}"}}}}')
    return folder


@pytest.fixture
def bare(tmp_path, cache, monkeypatch):
    """A machine without wheels and toolkits."""
    monkeypatch.setattr(headers, "wheel_root", lambda: None)
    monkeypatch.setattr(headers, "SYSTEM", tmp_path / "usr-local-cuda")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    for tool in ("g++", "gcc"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def test_two_environments_that_share_a_cache_compile_with_the_same_headers(bare):
    folders = {cached_headers(Headers(toolkit(bare / name) / "include", "1-2-3")) for name in ("one", "two")}
    assert [str(folder.relative_to(bare / "cache")) for folder in folders] == ["headers/1-2-3"]
    assert "13000" in (folders.pop() / "crt/host_defines.h").read_text()
    assert [path.name for path in (bare / "cache/headers").iterdir() if path.is_dir()] == ["1-2-3"]
    assert list((bare / "cache/parts").iterdir()) == []


def test_headers_keep_their_times_so_that_ninja_recompiles_nothing(bare):
    include = toolkit(bare / "one") / "include"
    found = cached_headers(Headers(include, "1")) / "cuda_runtime_api.h"
    assert found.stat().st_mtime_ns == (include / "cuda_runtime_api.h").stat().st_mtime_ns


def test_the_headers_of_a_toolkit_are_found_where_the_wheels_are_not(bare, monkeypatch):
    """A machine with a toolkit was told to install the headers that it has."""
    assert find_headers() is None
    toolkit(headers.SYSTEM, listed="13.0.96")
    assert find_headers() == Headers(headers.SYSTEM / "include", "toolkit-13.0.96")
    nvcc = executable(toolkit(bare / "on-path", 13020) / "bin/nvcc", "")
    monkeypatch.setenv("PATH", f"{bare / 'bin'}:{nvcc.parent}")
    assert find_headers() == Headers(bare / "on-path/include", "toolkit-13.2")
    monkeypatch.setenv("CUDA_HOME", str(toolkit(bare / "named", listed="13.1.80")))
    assert find_headers() == Headers(bare / "named/include", "toolkit-13.1.80")
    assert headers_here()["nvidia-cuda-cccl"] == str(bare / "named/include/nv/target")
    assert find_toolchain("sim").cuda_include.name == "toolkit-13.1.80"


def test_the_copy_of_headers_follows_their_version(bare, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(toolkit(bare / "named", listed="13.0.96")))
    first = find_headers()
    toolkit(bare / "named", 13010, listed="13.1.80")
    copies = [cached_headers(found) for found in (first, find_headers())]
    assert [copy.name for copy in copies] == ["toolkit-13.0.96", "toolkit-13.1.80"]


def test_a_toolkit_of_another_cuda_or_without_a_header_is_left_out(bare, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(toolkit(bare / "old", 12080)))
    (toolkit(headers.SYSTEM) / "include/nv/target").unlink()
    with pytest.raises(BuildError, match=r"not installed; install them: `pip install .*`, or set CUDA_HOME to a"):
        find_toolchain("sim")


def test_wheels_come_first_and_all_of_them_are_needed(bare, monkeypatch):
    monkeypatch.setattr(headers, "wheel_root", lambda: toolkit(bare / "wheels"))
    monkeypatch.setattr(headers, "_version", lambda wheel: f"13.0.{len(wheel)}")
    monkeypatch.setenv("CUDA_HOME", str(toolkit(bare / "named")))
    assert find_headers() == Headers(bare / "wheels/include", "13.0.19-13.0.15-13.0.16")
    monkeypatch.setattr(headers, "_version", lambda wheel: None if "crt" in wheel else "13.0.1")
    assert find_headers() == Headers(bare / "named/include", "toolkit-13.0")


def test_the_cublas_of_a_toolkit_is_found_and_comes_first(tmp_path, monkeypatch):
    monkeypatch.setattr(toolchain, "cuda_roots", lambda: iter((tmp_path / "none", tmp_path / "cuda")))
    monkeypatch.setattr(toolchain, "find_system_library", lambda name: None)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/else")
    assert (find_cublas(), has_cublas(), library_path()) == (None, False, "")
    folder = tmp_path / "cuda/targets/x86_64-linux/lib"
    folder.mkdir(parents=True)
    for name in ("libcublas.so", "libcublas.so.13", "libcublas.so.13.0.2.14", "libcublasLt.so.13"):
        (folder / name).touch()
    assert (find_cublas(), has_cublas(), library_path()) == (folder / "libcublas.so.13", True, f"{folder}:/else")


def test_a_cublas_of_the_system_needs_no_folder(monkeypatch):
    monkeypatch.setattr(toolchain, "cuda_roots", lambda: iter(()))
    monkeypatch.setattr(toolchain, "find_system_library", lambda name: f"lib{name}.so.12")
    assert (has_cublas(), library_path()) == (True, "")


REQUIRED = {
    requirement.name: requirement.specifier
    for requirement in map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    if requirement.name in HEADERS
}
OLDEST = {name: f"=={min(Version(part.version) for part in range)}" for name, range in REQUIRED.items()}
NEWEST = {name: str(range) for name, range in REQUIRED.items()}
RUNTIME = "nvidia-cuda-runtime"  # PyTorch pins its patch level, so the other two may be of other versions
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
