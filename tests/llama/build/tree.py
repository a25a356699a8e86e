"""A small tree with the parts of llama.cpp that a build reads."""

from pathlib import Path

from fattn_probe.llama.source.features import Features
from fattn_probe.llama.source.tree import Tree, digest_tree
from tests.llama.source.fake_index import files_in, write_tree

FILES = files_in(Path(__file__).with_name("small_tree.txt"))

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
