"""A small tree with the parts of llama.cpp that a build reads."""

from pathlib import Path

from fattn_probe.llama.source.features import Features
from fattn_probe.llama.source.tree import Tree, digest_tree
from tests.llama.source.fake_index import write_tree

FILES = {
    "ggml/CMakeLists.txt": "set(GGML_VERSION_MAJOR 0)\nset(GGML_VERSION_MINOR 26)\nset(GGML_VERSION_PATCH 1)\n",
    "ggml/src/CMakeLists.txt": """
add_library(ggml-base
            ../include/ggml.h
            ggml.c
            ggml-quants.c
            gguf.cpp)

add_library(ggml
            ggml-backend-dl.cpp
            ggml-backend-reg.cpp)
""",
    **{
        f"ggml/src/{name}": ""
        for name in ("ggml.c", "ggml-quants.c", "gguf.cpp", "ggml-backend-dl.cpp", "ggml-backend-reg.cpp")
    },
    **{f"ggml/src/ggml-cpu/{name}": "" for name in ("ggml-cpu.c", "repack.cpp", "amx/amx.cpp")},
    "ggml/src/ggml-version.h.in": '#define GGML_VERSION "@GGML_VERSION@"\n',
    "ggml/src/ggml-cpu/CMakeLists.txt": """
    list (APPEND GGML_CPU_SOURCES
        ggml-cpu/ggml-cpu.c
        ggml-cpu/repack.cpp
        ggml-cpu/amx/amx.cpp
        ggml-cpu/amx/amx.h
        )
    list (APPEND GGML_CPU_SOURCES
        ggml-cpu/llamafile/sgemm.cpp)
""",
    "ggml/src/ggml-cpu/arch/x86/quants.c": "",
    "ggml/src/ggml-cpu/arch/x86/repack.cpp": "",
    "ggml/src/ggml-cpu/arch/x86/cpu-feats.cpp": "",
    "ggml/src/ggml-cpu/arch/arm/quants.c": "",
    "ggml/src/ggml-cuda/ggml-cuda.cu": "int backend;\n",
    "ggml/src/ggml-cuda/fattn.cu": "static __global__ void k(int n) {\n}\nconstexpr int pair = GGML_CUDA_FA_F16_F16;\n",
    "ggml/src/ggml-cuda/fattn-mma-f16.cuh": "#define DECL_FATTN_MMA_F16_CASE(DKQ, DV, ncols1, ncols2) void mma()\n",
    "ggml/src/ggml-cuda/fattn-tile.cuh": "#define DECL_FATTN_TILE_CASE(DKQ, DV) void tile()\n",
    "ggml/src/ggml-cuda/fattn-vec.cuh": "#define DECL_FATTN_VEC_CASE(D, type_K, type_V) void vec()\n",
    "ggml/src/ggml-cuda/convert.cu": "",
    "ggml/src/ggml-cuda/scale.cu": "static __global__ void scale(int n) {\n}\n",
    "ggml/src/ggml-cuda/template-instances/fattn-mma-f16-instance-ncols1_8-ncols2_8.cu": (
        "DECL_FATTN_MMA_F16_CASE(64, 64, 8, 8);\nDECL_FATTN_MMA_F16_CASE(80, 80, 8, 8);\n"
    ),
    "ggml/src/ggml-cuda/template-instances/fattn-vec-instance-f16-f16.cu": (
        "DECL_FATTN_VEC_CASE( 64, GGML_TYPE_F16, GGML_TYPE_F16);\n"
    ),
    "ggml/src/ggml-cuda/template-instances/fattn-vec-instance-f16-q8_0.cu": (
        "DECL_FATTN_VEC_CASE( 64, GGML_TYPE_F16, GGML_TYPE_Q8_0);\n"
    ),
    "ggml/src/ggml-cuda/template-instances/fattn-vec-instance-q8_0-f16.cu": "",
    "ggml/src/ggml-cuda/template-instances/fattn-vec-instance-q8_0-q8_0.cu": "",
    "ggml/src/ggml-cuda/template-instances/mmq-instance-q8_0.cu": "",
    "tests/test-backend-ops.cpp": "int main() {}\n",
}

LIBLLAMA = {
    "include/llama.h": "",
    "src/llama.cpp": "int llama;\n",
    "src/llama-model.cpp": "",
    "src/llama-memory-hybrid.cpp": "",
    "src/llama-version.h.in": "",
    "src/models/llama.cpp": "",
    "src/models/qwen2.cpp": "",
}


def make_tree(root: Path) -> Tree:
    write_tree(root, FILES)
    features = Features("C", "ntiles_dst", None, "", True, (), False, "GGML_CUDA_FA_QUANTS", True, "type_K,type_V")
    return Tree("path:small", root, "11549", digest_tree(root), features)
