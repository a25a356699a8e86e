"""The architectures that a llama.cpp tree knows, and the architecture of a model's GGUF file."""

import difflib
import re
from pathlib import Path

from fattn_probe.base.errors import InputError
from fattn_probe.cases.op.gguf_file import ARCHITECTURE, reading
from fattn_probe.llama.build.sources import ARCHITECTURES, LIBLLAMA
from fattn_probe.llama.build.symbols import defining_class
from fattn_probe.llama.source import Tree

KEY = "general.architecture"
NAMED = re.compile(r'\{\s*(?P<value>LLM_ARCH_\w+)\s*,\s*"(?P<name>[^"]+)"\s*\}')
# `case LLM_ARCH_QWEN2: return new llama_model_qwen2(params);`, or make_unique<llm_build_qwen2> before 2026
# The cases are one atomic group: giving them back one by one takes a second of each search.
MADE = re.compile(r"(?P<cases>(?>(?:case\s+LLM_ARCH_\w+\s*:\s*)+))[^;]*?(?:\bnew\s+|make_unique<)(?P<made>\w+)")


def architecture_of(model: Path) -> str:
    """The architecture of a model; InputError for a truncated file, or one that is not a model."""
    with reading(model) as reader:
        field = reader.fields.get(KEY)
        found = field.contents() if field else None
    if not isinstance(found, str):
        raise InputError(f"{model}: not a model: it has no key {KEY}")
    if found == ARCHITECTURE:
        raise InputError(f"{model}: not a model, but a recorded op of fattn-probe, which `compare` and `inspect` take")
    return found


def architectures(tree: Tree) -> dict[str, str]:
    """The values of `llm_arch` by the names of architectures."""
    text = (tree.root / LIBLLAMA / "llama-arch.cpp").read_text(errors="replace")
    return {match["name"]: match["value"] for match in NAMED.finditer(text)}


def check_architecture(tree: Tree, model: Path, architecture: str) -> None:
    """InputError, with the nearest names, if a tree does not know the architecture of a model."""
    known = architectures(tree)
    if architecture not in known:
        near = ", ".join(difflib.get_close_matches(architecture, known, n=3)) or "none is like it"
        raise InputError(
            f"{model}: {tree.spec} knows {len(known)} architectures, but not {architecture!r}; the nearest: {near}"
        )


def files_of(tree: Tree, architecture: str) -> tuple[str, ...]:
    """The file of src/models/ with the graph of an architecture; none if it is not found in advance.

    Other files that it needs are compiled when the model calls them.
    """
    value = architectures(tree).get(architecture)
    text = (tree.root / LIBLLAMA / "llama-model.cpp").read_text(errors="replace")
    made = [match["made"] for match in MADE.finditer(text) if re.search(rf"\b{value}\b", match["cases"])]
    files = sorted((tree.root / ARCHITECTURES).glob("*.cpp"))
    found = [defining_class(f"vtable for {name}", files) for name in made]
    return tuple(dict.fromkeys(file for file in found if file))
