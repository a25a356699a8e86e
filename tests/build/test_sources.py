import pytest

from fattn_probe.build.sources import ALL_QUANTS, ggml_version, listed, read_sources
from fattn_probe.errors import InputError
from tests.build.tree import make_tree

CMAKE = """
add_library(ggml-base
            ../include/ggml.h
            ggml.c
            ggml.cpp
            gguf.cpp)
add_library(ggml
            ggml-backend-reg.cpp)
"""


def test_files_of_a_cmake_target():
    assert listed(CMAKE, "ggml-base") == ("ggml.c", "ggml.cpp", "gguf.cpp")
    assert listed(CMAKE, "ggml") == ("ggml-backend-reg.cpp",)
    assert listed(CMAKE, "ggml-opencl") == ()


def test_version():
    assert ggml_version("set(GGML_VERSION_MAJOR 0)\nset(GGML_VERSION_MINOR 9)\nset(GGML_VERSION_PATCH 4)\n") == "0.9.4"


@pytest.mark.parametrize(("machine", "arch"), [("x86_64", "x86"), ("aarch64", "arm")])
def test_cpu_files_are_the_processors(tmp_path, machine, arch):
    cpu = read_sources(make_tree(tmp_path), (), machine).cpu
    assert cpu == ("ggml-cpu/ggml-cpu.c", "ggml-cpu/amx/amx.cpp", f"ggml-cpu/arch/{arch}/quants.c")


def test_a_tree_compiles_only_what_attention_needs(tmp_path):
    sources = read_sources(make_tree(tmp_path), (), "x86_64")
    assert sources.cuda == ("ggml-cuda.cu", "fattn.cu")
    assert "mma 64,64,8,8" in sources.cases
    assert sources.version == "0.26.1"


def test_default_pairs_are_upstreams(tmp_path):
    defines = read_sources(make_tree(tmp_path), (), "x86_64").quant_defines
    assert "-DGGML_CUDA_FA_F16_F16=1" in defines
    assert "-DGGML_CUDA_FA_F16_Q8_0=0" in defines
    assert '-DGGML_CUDA_FA_QUANTS="q8_0-q8_0,f16-f16"' in defines


def test_a_pair_can_be_added(tmp_path):
    defines = read_sources(make_tree(tmp_path), ("f16-q8_0",), "x86_64").quant_defines
    assert "-DGGML_CUDA_FA_F16_Q8_0=1" in defines
    assert "-DGGML_CUDA_FA_Q8_0_F16=0" in defines


@pytest.mark.parametrize("quants", [("f16-q8_0",), (ALL_QUANTS,)])
def test_older_trees_know_only_all_pairs(tmp_path, quants):
    tree = make_tree(tmp_path, "GGML_CUDA_FA_ALL_QUANTS")
    assert read_sources(tree, (), "x86_64").quant_defines == ()
    sources = read_sources(tree, quants, "x86_64")
    assert sources.quant_defines == ("-DGGML_CUDA_FA_ALL_QUANTS",)
    assert "template-instances/fattn-vec-instance-f16-q8_0.cu" in sources.full


def test_an_unknown_pair_is_the_users_mistake(tmp_path):
    with pytest.raises(InputError, match="f16-q9_0"):
        read_sources(make_tree(tmp_path), ("f16-q9_0",), "x86_64")
