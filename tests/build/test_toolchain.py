"""Where the compilers and headers come from."""

import importlib.metadata

import pytest

from fattn_probe.build import toolchain
from fattn_probe.build.toolchain import cached_headers, find_cublas, has_cublas, library_path
from fattn_probe.errors import BuildError


def test_two_environments_that_share_a_cache_compile_with_the_same_headers(tmp_path, monkeypatch):
    monkeypatch.setenv("FATTN_PROBE_CACHE", str(tmp_path / "cache"))
    for name in ("one", "two"):
        (tmp_path / name / "crt").mkdir(parents=True)
        (tmp_path / name / "crt/host_defines.h").write_text("#define __device__\n")
    folders = {cached_headers(tmp_path / name) for name in ("one", "two")}
    assert len(folders) == 1
    assert (folders.pop() / "crt/host_defines.h").read_text() == "#define __device__\n"
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_headers_keep_their_times_so_that_ninja_recompiles_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("FATTN_PROBE_CACHE", str(tmp_path / "cache"))
    header = tmp_path / "include/cuda.h"
    header.parent.mkdir()
    header.write_text("")
    assert (cached_headers(header.parent) / "cuda.h").stat().st_mtime_ns == header.stat().st_mtime_ns


def test_a_missing_wheel_is_named(tmp_path, monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(BuildError, match="headers of nvidia-cuda-runtime are not on this machine; install them"):
        cached_headers(tmp_path)


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
