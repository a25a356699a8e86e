"""What is read out of a tree's text."""

import pytest

from fattn_probe.llama.source import ggml_types, kernel_cases, kernel_parameters, resolve
from fattn_probe.llama.source.features import era_of
from tests.llama.source.fake_index import TREE, write_tree


@pytest.fixture
def tree(tree_folder):
    return resolve(str(tree_folder))


def test_features(tree):
    features = tree.features
    assert (features.era, features.ntiles, features.view_parameter) == ("C", "ntiles_dst", "V_is_K_view")
    assert features.fixup_kernels == ("flash_attn_stream_k_fixup_uniform",)
    assert (features.kernel_launch, features.quants_option) == ("ggml_cuda_kernel_launch", "GGML_CUDA_FA_ALL_QUANTS")
    assert (features.sparse_gather, features.wmma, features.test_file_option) == (True, False, True)
    assert features.test_types == "type_K,type_V"
    assert ggml_types(tree) == {0: "f32", 1: "f16", 12: "q4_K"}


@pytest.mark.parametrize(
    ("ntiles", "z_gqa", "view", "era"),
    [
        ("ntiles_total", False, "mla", "A"),
        ("ntiles_total", True, "V_is_K_view", "B"),
        ("ntiles_dst", True, "V_is_K_view", "C"),
        ("ntiles_total", False, None, "?"),
        (None, False, None, "?"),
    ],
)
def test_era(ntiles, z_gqa, view, era):
    assert era_of(ntiles, z_gqa, view) == era


def test_word_in_a_comment_is_no_feature(tmp_path):
    common = {
        "ggml/src/ggml-cuda/fattn-common.cuh": "// ntiles_dst, ggml_cuda_kernel_launch: later\nint ntiles_total;\n"
    }
    mma = {"ggml/src/ggml-cuda/fattn-mma-f16.cuh": "template<bool mla> __global__ void flash_attn_ext_f16();\n"}
    features = resolve(str(write_tree(tmp_path / "old", TREE | common | mma))).features
    assert (features.era, features.kernel_launch) == ("A", "fattn_kernel<<<...>>>")


def test_kernel_cases_are_the_declared_ones_in_order(tree):
    cases = kernel_cases(tree)
    assert [case.name for case in cases] == [
        "mma 64,64,8,8",
        "mma 128,128,8,8",
        "tile 576,512",
        "vec 64,GGML_TYPE_F16,GGML_TYPE_Q4_0",
    ]
    assert cases[0].declaration == "DECL_FATTN_MMA_F16_CASE(64, 64, 8, 8);"
    assert cases[0].file == "fattn-mma-f16-instance-ncols1_8-ncols2_8.cu"
    assert [case.header for case in cases[1:]] == ["fattn-mma-f16.cuh", "fattn-tile.cuh", "fattn-vec.cuh"]


def test_template_parameters_lose_types_and_defaults(tree):
    assert kernel_parameters(tree.root) == {
        "flash_attn_stream_k_fixup_uniform": ["D", "ncols1"],
        "flash_attn_ext_f16": ["DKQ", "DV", "V_is_K_view", "T"],
    }


def test_wmma_kernel_does_not_hide_the_mma_kernel(tmp_path):
    wmma = {
        "ggml/src/ggml-cuda/fattn-wmma-f16.cu": "template<int D, int ncols>\n__global__ void flash_attn_ext_f16(int);\n"
    }
    parameters = kernel_parameters(resolve(str(write_tree(tmp_path / "old", TREE | wmma))).root)
    assert parameters["flash_attn_ext_f16"][0] == "DKQ"
    assert parameters["fattn-wmma-f16:flash_attn_ext_f16"] == ["D", "ncols"]
