"""Headers of kernels that are compiled once: when they are, and that objects are the same."""

from dataclasses import replace

import pytest

from fattn_probe.base.errors import BuildError
from fattn_probe.base.process import run
from fattn_probe.llama.build import BuildRequest, precompiled
from fattn_probe.llama.build.ensure import ensure
from fattn_probe.llama.build.make import plan_build
from fattn_probe.llama.build.plan import case_file
from fattn_probe.llama.build.precompiled import FEW, HEADERS
from fattn_probe.llama.build.sources import CUDA
from fattn_probe.llama.build.steps import Plan, compile_step
from fattn_probe.llama.launch.families import kernel_named
from fattn_probe.llama.source import DEFAULT_SOURCE, kernel_cases, resolve


def plan_of(number, header=HEADERS):
    command = ("g++", "-O2", "-include", header, "-Inative/sim", "-x", "c++")
    return Plan(tuple(compile_step(f"{n}.cu", f"{n}.o", command, ccache=True) for n in range(number)))


@pytest.fixture
def folder(tmp_path, cache):
    """A build's folder, whose precompiled headers are made by `commands`."""
    made = tmp_path / "build"
    (made / "overlay" / CUDA).mkdir(parents=True)
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
    link = folder / "overlay" / CUDA / f"{HEADERS}.gch"
    for number in (FEW, FEW, 1):  # one that is there serves a single kernel too
        with precompiled.precompiled(folder, plan_of(number), {}, ("g++ 12",)):
            assert link.read_text() == "header"
        assert not link.is_symlink()
    command = ["g++", "-O2", "-Inative/sim", "-x", "c++-header", f"overlay/{CUDA}/{HEADERS}", "-o"]
    assert commands == [command], "made once"


@pytest.mark.parametrize("change", ["headers", "compiler"])
def test_another_header_is_made_for_other_headers_and_compilers(folder, commands, change):
    for text, compiler in (("// headers: 1\n", "g++ 12"), ("// headers: 2\n", "g++ 12"), ("// headers: 1\n", "g++ 13")):
        (folder / "0.cu").write_text(text if change == "headers" else "// headers: 1\n")
        with precompiled.precompiled(folder, plan_of(FEW), {}, (compiler if change == "compiler" else "g++ 12",)):
            pass
    assert len(commands) == 2


def test_none_is_made_for_few_kernels_for_those_that_are_there_and_for_other_files(folder, commands):
    (folder / "1.o").write_text("object")
    for plan in (plan_of(FEW), plan_of(FEW - 1), plan_of(100, "native/sim/prelude.h")):
        with precompiled.precompiled(folder, plan, {}, ()):
            assert not list((folder / "overlay" / CUDA).iterdir())
    assert not commands


def test_one_that_does_not_compile_is_left_out(folder, monkeypatch):
    def fails(*words, **more):
        raise BuildError("error: expected ';'")

    monkeypatch.setattr(precompiled, "run", fails)
    with precompiled.precompiled(folder, plan_of(FEW), {}, ()):
        assert not list((folder / "overlay" / CUDA).iterdir())


def test_the_cache_keeps_the_newest(folder, commands):
    for number in range(precompiled.MOST + 3):
        with precompiled.precompiled(folder, plan_of(FEW), {}, (f"g++ {number}",)):
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
        assert list((folder / "overlay" / CUDA).glob("*.gch"))
        run([*words[:-1], quick, "-Winvalid-pch", "-Werror"], cwd=folder)
    assert quick.read_bytes() == plain.read_bytes()
