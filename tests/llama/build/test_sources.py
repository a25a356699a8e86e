"""The files that a build compiles, and the trees that cannot be built."""

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.llama.build.key import CPU_RUNNER, RUNNER, TEST_BACKEND_OPS, Contents
from fattn_probe.llama.build.make import check_contents
from fattn_probe.llama.build.sources import read_sources
from tests.llama.build.tree import make_tree

CUDA = "ggml/src/ggml-cuda"
TILE = f"{CUDA}/fattn-tile.cuh"


@pytest.mark.parametrize(
    ("file", "text", "macro"),
    [
        (TILE, None, r"DECL_FATTN_TILE_CASE\(DKQ, DV\)"),
        # March 2025: one head size
        (
            f"{CUDA}/fattn-mma-f16.cuh",
            "#define DECL_FATTN_MMA_F16_CASE(D, ncols1, ncols2) void mma()",
            "DECL_FATTN_MMA_F16",
        ),
        (
            f"{CUDA}/fattn-vec.cuh",
            "// #define DECL_FATTN_VEC_CASE(D, type_K, type_V) void vec()",
            "DECL_FATTN_VEC_CASE",
        ),
    ],
)
def test_a_tree_with_other_attention_kernels_is_refused_in_one_sentence(tmp_path, file, text, macro):
    tree = make_tree(tmp_path)
    (tmp_path / file).unlink()
    if text:
        (tmp_path / file).write_text(text)
    with pytest.raises(
        InputError, match=f"does not know this tree's attention kernels: .* does not define {macro}"
    ) as raised:
        read_sources(tree, (), "x86_64")
    assert "\n" not in str(raised.value)


def test_a_tree_of_2024_is_refused_for_its_kernels_although_files_are_elsewhere(tmp_path):
    tree = make_tree(tmp_path)
    for name in (TILE, f"{CUDA}/ggml-cuda.cu", "ggml/src/ggml-cpu/CMakeLists.txt"):
        (tmp_path / name).unlink()
    with pytest.raises(InputError, match="does not know this tree's attention kernels"):
        read_sources(tree, (), "x86_64")


def test_upstreams_test_of_a_tree_without_it_is_one_sentence(tmp_path):
    tree = make_tree(tmp_path)
    sources, contents = read_sources(tree, (), "x86_64"), Contents((), (), (TEST_BACKEND_OPS,))
    check_contents(tree, contents, sources)
    (tmp_path / "tests/test-backend-ops.cpp").unlink()
    with pytest.raises(InputError, match=r"'path:small': this tree has no tests/test-backend-ops\.cpp"):
        check_contents(tree, contents, sources)


def test_the_cpu_backend_has_what_attention_and_models_call(tmp_path):
    files = read_sources(make_tree(tmp_path), (), "x86_64").cpu
    assert files == ("ggml-cpu/ggml-cpu.c", "ggml-cpu/amx/amx.cpp", "ggml-cpu/arch/x86/quants.c")


def test_a_cpu_backend_without_a_list_of_its_files_is_one_sentence_where_it_is_needed(tmp_path):
    tree = make_tree(tmp_path)
    (tmp_path / "ggml/src/ggml-cpu/CMakeLists.txt").write_text("add_library(ggml-cpu ggml-cpu.c)\n")
    sources = read_sources(tree, (), "x86_64")
    check_contents(tree, Contents((), (), (RUNNER,)), sources)
    for program in (CPU_RUNNER, TEST_BACKEND_OPS):
        with pytest.raises(InputError, match=r"'path:small': .*CMakeLists\.txt has no list GGML_CPU_SOURCES"):
            check_contents(tree, Contents((), (), (program,)), sources)
