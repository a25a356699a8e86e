"""Sources: a llama.cpp tree from a package index, a git repository or a folder, and patches for it."""

import functools

from fattn_probe.llama.source.features import Features, KernelCase, ggml_types, instance_cases, kernel_parameters
from fattn_probe.llama.source.spec import DEFAULT_SOURCE
from fattn_probe.llama.source.store import resolve
from fattn_probe.llama.source.tree import Tree, digest_models, has_models, kept_files, model_files

__all__ = [
    "DEFAULT_SOURCE",
    "Features",
    "KernelCase",
    "Tree",
    "digest_models",
    "ggml_types",
    "has_models",
    "kept_files",
    "kernel_cases",
    "kernel_parameters",
    "model_files",
    "resolve",
]


@functools.lru_cache(maxsize=8)
def kernel_cases(tree: Tree) -> tuple[KernelCase, ...]:
    """The flash-attention kernel cases that a tree compiles, sorted."""
    cases = instance_cases(tree.root)
    return tuple(sorted(cases, key=lambda it: (it.family, [int(arg) for arg in it.args if arg.isdigit()], it.args)))
