"""The launch recorder, in front of a fake libcudart."""

import shutil
from pathlib import Path

import nvidia
import pytest

import fattn_probe
from fattn_probe.base.process import run
from fattn_probe.machine.run.runner import read_launches

HERE = Path(__file__).parent
RECORDER = Path(fattn_probe.__file__).parent / "native/cuda/record_launches.cpp"
RUNNER = RECORDER.parent.parent / "runner"
HEADERS = Path(nvidia.__path__[0]) / "cu13/include"

pytestmark = [pytest.mark.build, pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not here")]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorder")
    compile: list[str | Path] = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-isystem", HEADERS]
    for name, links in (("cudart", []), ("ggml_cuda", ["-L", folder, "-lfake_cudart"])):
        source = HERE / f"fake_{name}.cpp"
        run([*compile, "-fPIC", "-shared", source, "-o", folder / f"libfake_{name}.so", *links])
    links = ["-L", folder, "-lfake_ggml_cuda", "-lfake_cudart", "-ldl", "-rdynamic", f"-Wl,-rpath,{folder}"]
    run([*compile, "-I", RUNNER, HERE / "record_launches.cpp", RECORDER, "-o", folder / "program", *links])
    return folder / "program"


def test_each_launch_is_recorded_and_forwarded_with_its_answer(program, tmp_path):
    file = tmp_path / "launches"
    assert run([program], env={"FATTN_PROBE_LAUNCHES": str(file)}).stdout.splitlines() == [
        "registered _Z18flash_attn_ext_f16ILi64ELi8ELb0EEvPKc",
        "registered _Z5fixupPf",
        "launched by handle",
        "answer 1",
        "launched with a configuration",
        "last error 0",
        "launched",
        "launched with a configuration",
        "last error 1",
    ]
    attention, general, plain, after_an_error = read_launches(file)
    assert (attention.spelling, attention.grid, attention.block) == (
        "flash_attn_ext_f16<64,8,false>",
        (92, 1, 1),
        (32, 4, 1),
    )
    assert (attention.shared, attention.regs, attention.static_shared) == (40960, 128, 16)
    assert attention.max_blocks_per_sm == 8
    assert (general.spelling, general.grid, general.order) == ("fixup", (2, 8, 8), 1)
    assert (plain.spelling, plain.grid, plain.order) == ("fixup", (1, 1, 1), 2)
    assert (general.regs, general.max_blocks_per_sm) == (None, 16)
    assert (after_an_error.kernel, after_an_error.regs) == ("flash_attn_ext_f16", None)
    assert [launch.origin.known for launch in (attention, general, after_an_error)] == [True, True, False]


def test_times_are_of_what_runs_and_without_the_environment_nothing_is_written(program):
    assert "launched by handle" in run([program]).stdout
    lines = [line for line in run([program, "time"]).stdout.splitlines() if line.startswith(("gpu", "wall"))]
    assert lines == ["gpu 0.002 0.002", "wall"]
