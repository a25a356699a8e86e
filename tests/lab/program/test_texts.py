"""What a program is made of, what of it the simulator lacks, and what is printed after its own output."""

from pathlib import Path

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.lab.program import build, execute
from fattn_probe.lab.program.build import Executable, Program, check_supported, missing_headers, missing_names
from fattn_probe.lab.program.execute import ProgramRun, launches_of
from fattn_probe.machine.run.outcome import Finding
from tests import made
from tests.made import H200

RECORDS = (
    '{"order":0,"kernel":"void sum(const float*, float*)","grid":[4,1,1],"block":[256,1,1],"shared":0,"regs":32,'
    '"static_shared":0,"max_blocks_per_sm":8}\n'
    '{"order":0,"kernel":"void sum(const float*, float*)","grid":[4,1,1],"block":[256,1,1],"shared":0,"regs":32,'
    '"static_shared":65536,"max_blocks_per_sm":3}\n'
    '{"note":"host time"}\n'
    '{"order":1,"kernel":"void sum(const float*, float*)","grid":[4,1,1],"block":[256,1,1],"shared":0,"regs":32,'
    '"static_shared":65536,"max_blocks_per_sm":3}\n'
    '{"order":2,"kernel":"void scale(T*) [with T = float; int N = 4]","grid":[1,1,1],"block":[32,1,1],"shared":64,'
    '"regs":32,"static_shared":0,"max_blocks_per_sm":32}\n'
)


def shown(run, target=H200, *, checked=False):
    return made.shown(execute.render(run, target, checked=checked), width=100)


def test_equal_launches_and_grids_of_one_kernel_share_a_row_and_the_later_record_counts():
    launches = launches_of(RECORDS)
    assert [launch.order for launch in launches] == [0, 1, 2]
    assert launches[0].static_shared == 65536
    text = shown(ProgramRun("sim:h200", 0, 0.1, launches_of(RECORDS)))
    assert "sim:h200: 3 launches" in text
    (row,) = [line for line in text.splitlines() if line.startswith("sum")]
    assert row.split() == ["sum", "2", "4x1x1", "256x1x1", "65536", "B", "3", "(38", "%)"]
    assert "scale<4>" in text or "scale<float,4>" in text
    assert "exit status 0 after 0.1 s" in text
    sizes = ("[1,1,1]", "[20,1,1]", "[3,2,1]")
    lines = [
        RECORDS.splitlines()[0].replace("[4,1,1]", size).replace(":0,", f":{n},", 1) for n, size in enumerate(sizes)
    ]
    text = shown(ProgramRun("sim:h200", 0, 0.1, launches_of("\n".join(lines))))
    assert "1x1x1 to 20x1x1" in text


@pytest.mark.parametrize("host_time", [False, True])
def test_measured_time_is_said_to_be_the_hosts(host_time):
    text = shown(ProgramRun("sim:h200", 0, 0.1, launches_of(RECORDS), host_time=host_time))
    assert (execute.HOST_TIME[:40] in text) == host_time


def test_the_frames_of_the_launch_are_left_out_with_or_without_a_kernel():
    fault = Finding("host-memory", "an argument", frames=("main at /a/b.cu:3", "start at libc.c:1"))
    assert execute.within_kernel(fault).frames == ("main at /a/b.cu:3",)
    frames = (
        "load<4>(float*) at /a/b.cu:3",
        "void sum<4>(float*) at /a/b.cu:7",
        "main::{lambda(auto)#1} at /a/b.cu:20",
    )
    fault = Finding("race", "", "void sum(float*) [with int N = 4]", frames=frames)
    assert execute.within_kernel(fault).frames == frames[:2]


def test_a_finding_ends_the_report():
    frames = ("sum(float*) at /a/b.cu:7",)
    fault = Finding("race", "byte 4 is written", "void sum(float*)", block=(1, 0, 0), thread=(5, 0, 0), frames=frames)
    text = shown(ProgramRun("sim:h200", 86, 0.1, (), fault), checked=True)
    assert "race: byte 4 is written" in text
    assert "sum at /a/b.cu:7" in text
    assert "stopped by the simulator after" in text
    assert "found nothing" not in text


def test_the_checker_says_that_it_found_nothing_and_unknown_static_memory_is_no_none():
    assert "the checker found nothing" in shown(ProgramRun("sim:h200", 0, 0.1, ()), checked=True)
    text = shown(
        ProgramRun("sim:h200", 86, 0.1, launches_of(RECORDS.splitlines()[0].replace('"static_shared":0,', "")))
    )
    (row,) = [line for line in text.splitlines() if line.startswith("sum")]
    assert row.split()[4] == "-"


REFUSED = (
    '{"refused":{"kind":"launch-refused","message":"a block of 2048 threads","kernel":"void sum(float*)",'
    '"frames":["main at /a/b.cu:3","start at libc.c:1"]}}\n'
)


def test_refused_launches_are_shown_once_for_each_place():
    (refused,) = execute.refusals_of(RECORDS + 2 * REFUSED)
    assert (refused.frames, refused.line) == (("main at /a/b.cu:3",), 3)
    text = shown(ProgramRun("sim:h200", 0, 0.1, (), refused=(refused,)), checked=True)
    assert "sim:h200: 0 launches, launches refused at 1 place" in text
    assert "launch-refused: a block of 2048 threads\n  in sum\n  main at /a/b.cu:3\n" in text
    assert "found nothing" not in text
    some = ProgramRun("sim:h200", 0, 0.1, launches_of(RECORDS), refused=(refused,))
    assert "the checker found nothing in the launches that ran" in shown(some, checked=True)


def test_a_program_that_timed_out_is_named_with_its_last_launch_and_so_is_a_crash():
    made, settings = Executable(Path("/cache/bin/a-123"), Path("a.cu")), execute.ProgramSettings(timeout=3.0)
    assert str(execute.timed_out(made, settings, RECORDS, "one\ntwo\n")).splitlines() == [
        "a.cu timed out after 3 s; its last launch was number 3, scale<float,4>, grid 1x1x1 of 32x1x1, 64 B",
        "one",
        "two",
    ]
    assert str(execute.timed_out(made, settings, "", "")) == "a.cu timed out after 3 s; before its first launch"
    assert "killed by SIGSEGV after" in shown(ProgramRun("sim:h200", -11, 0.1, ()))


def test_json_has_the_finding_and_the_static_memory():
    fault = Finding("race", "byte 4 is written", file="/a/b.cu", line=7)
    made = execute.document(ProgramRun("sim:h200", 86, 0.1, launches_of(RECORDS), fault))
    assert made["finding"]["line"] == 7
    assert made["launches"][0]["static_shared"] == 65536


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/tile.cuh").write_text("#pragma once\n#include <vector>\n#include <math.h>\n")
    (tmp_path / "main.cu").write_text('#include "lib/tile.cuh"\n#include <cstdio>\n#include <other.h>\nint main() {}\n')
    return tmp_path


def test_its_own_headers_belong_to_it_also_in_folders_and_standard_ones_come_first(folder):
    assert set(Program(folder / "main.cu").texts) == {folder / "main.cu", folder / "lib/tile.cuh"}
    assert set(Program(folder / "main.cu").standard_headers) == {"cstdio", "vector", "math.h"}
    (folder / "other.h").write_text("int other();\n")
    (folder / "lib/other.h").write_text("int another();\n")
    found = Program(folder / "main.cu", includes=(folder / "lib",)).texts
    assert {folder / "other.h", folder / "lib/other.h"} <= set(found)


@pytest.mark.parametrize(
    "change",
    [{"defines": ("N=2",)}, {"fast_math": True}, {"includes": ("lib",)}],
    ids=lambda change: next(iter(change)),
)
def test_the_digest_depends_on_everything(folder, change):
    plain = Program(folder / "main.cu")
    assert plain.digest == Program(folder / "main.cu").digest
    includes = tuple(folder / name for name in change.get("includes", ()))
    assert plain.digest != Program(folder / "main.cu", **{**change, "includes": includes}).digest
    (folder / "lib/tile.cuh").write_text("#pragma once\n")
    assert plain.digest != Program(folder / "main.cu").digest


@pytest.mark.parametrize("name", ["a\nb", "a\udcff"])
def test_a_name_that_no_build_file_can_have_is_refused(folder, name):
    """A line break was a syntax error of ninja's, and a byte that is not UTF-8 a traceback."""
    (folder / name).mkdir()
    (folder / name / "main.cu").write_text("int main() {}\n")
    for program in (
        Program(folder / name / "main.cu"),
        Program(folder / "main.cu", includes=(folder / name,)),
        Program(folder / "main.cu", defines=(name,)),
    ):
        with pytest.raises(InputError, match="has a line break, or bytes that are not UTF-8: rename it"):
            assert program.texts


def test_a_program_is_a_file_that_is_there(tmp_path):
    with pytest.raises(InputError, match=r"none\.cu: there is no such file"):
        _ = Program(tmp_path / "none.cu").texts
    with pytest.raises(InputError, match="is a folder: name the program's file"):
        _ = Program(tmp_path).texts


@pytest.fixture
def written(tmp_path):
    def write(text, *includes):
        (tmp_path / "main.cu").write_text(text)
        return Program(tmp_path / "main.cu", includes)

    return write


def test_a_header_that_is_missing_is_named_with_its_line(written, tmp_path):
    program = written("#include <cstdio>\n#include <thrust/sort.h>\n#include <cuda/std/atomic>\n")
    assert [line for line, _ in missing_headers(program, tmp_path / "main.cu")] == [2, 3]


def test_a_program_for_moore_threads_is_refused(written):
    with pytest.raises(InputError, match=r"<musa_runtime.h>: MUSA \(Moore Threads\) is not simulated"):
        check_supported(written("#include <musa_runtime.h>\n"))


def test_asynchronous_copies_by_groups_and_pipelines_are_named_and_their_primitives_are_there(written, tmp_path):
    names = ("cooperative_groups/memcpy_async.h", "cuda_pipeline.h", "cuda_pipeline_primitives.h")
    program = written("".join(f"#include <{name}>\n" for name in names))
    missing = missing_headers(program, tmp_path / "main.cu")
    assert [line for line, _ in missing] == [1, 2]
    assert all("use <cuda_pipeline_primitives.h>" in what for _, what in missing)
    assert program.simulator_headers == ["cuda_pipeline_primitives.h"]


def test_a_header_that_the_program_brings_is_not_missing(written, tmp_path):
    (tmp_path / "mine/cutlass").mkdir(parents=True)
    (tmp_path / "mine/cutlass/half.h").write_text("#include <cuda/std/utility>\n#include <cutlass/other.h>\n")
    program = written("#include <cutlass/half.h>\n#include <thrust/sort.h>\n", tmp_path / "mine")
    assert [line for line, _ in missing_headers(program, tmp_path / "main.cu")] == [2]
    assert [line for line, _ in missing_headers(program, tmp_path / "mine/cutlass/half.h")] == [2]


def test_a_name_that_is_missing_is_named_with_its_line_but_no_name_of_the_programs_own():
    text = "\n\n\nT f(cudaTextureObject_t t) {\n  return tex2D<float>(t);}\n"
    assert [(line, what.partition(":")[0]) for line, what in sorted(missing_names(text))] == [
        (4, "cudaTextureObject_t"),
        (5, "tex2D"),
    ]
    assert missing_names("// tex2D\nint n = image.tex2D(1) + p->tex2D(2);\n") == []


def test_a_file_of_a_folder_is_told_from_the_programs_own(written, tmp_path):
    program = written("int main() {}\n", Path("/usr/include"))
    assert program.folder_of(tmp_path / "main.cu") is None
    assert program.folder_of(Path("/usr/include/stdio.h")) == Path("/usr/include").resolve()


def test_all_places_are_in_one_message(tmp_path):
    (tmp_path / "a.cu").write_text('#include "b.cuh"\n#include <cub/cub.cuh>\n')
    (tmp_path / "b.cuh").write_text("\n#include <curand_kernel.h>\n")
    with pytest.raises(InputError) as caught:
        check_supported(Program(tmp_path / "a.cu"))
    assert f"{tmp_path}/a.cu:2: <cub/cub.cuh>" in str(caught.value)
    assert f"{tmp_path}/b.cuh:2: <curand_kernel.h>" in str(caught.value)


def test_equal_texts_have_one_file_which_is_always_whole(cache):
    text = "int main() {}\n"
    path = build.written(text, "tiled", ".cu")
    assert path.name.startswith("tiled-") and path.suffix == ".cu"
    path.write_text(text[:5])  # as a process that was ended left it
    assert build.written(text, "tiled", ".cu") == path
    assert path.read_text() == text
    assert build.written(text + "\n", "tiled", ".cu") != path
