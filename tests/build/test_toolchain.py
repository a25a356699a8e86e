"""Where the compilers and headers come from."""

import importlib.metadata

import pytest

from fattn_probe.build.toolchain import cached_headers
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
