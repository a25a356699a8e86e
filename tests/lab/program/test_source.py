"""What a program is made of, and what of it the simulator does not have."""

from pathlib import Path

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.lab.program import build
from fattn_probe.lab.program.build import Program, check_supported, missing_headers, missing_names


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/tile.cuh").write_text("#pragma once\n#include <vector>\n#include <math.h>\n")
    (tmp_path / "main.cu").write_text('#include "lib/tile.cuh"\n#include <cstdio>\n#include <other.h>\nint main() {}\n')
    return tmp_path


def test_its_own_headers_belong_to_it_and_standard_ones_come_first(folder):
    assert set(Program(folder / "main.cu").texts) == {folder / "main.cu", folder / "lib/tile.cuh"}
    assert set(Program(folder / "main.cu").standard_headers) == {"cstdio", "vector", "math.h"}


def test_headers_are_found_in_folders_too(folder):
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
