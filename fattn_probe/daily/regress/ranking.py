"""Which kernels are likely to tell whether an edit broke something: those that the changed functions reach."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from fattn_probe.base.errors import InputError
from fattn_probe.llama.source import Tree, kernel_cases
from fattn_probe.llama.source.features import CUDA
from fattn_probe.machine.run.base import base_of
from fattn_probe.machine.run.session import RunOptions
from fattn_probe.verdict.judge.code import Code, bodies_of

COMMON = re.compile(r"fattn.*\.cuh?|common\.cuh|mma\.cuh|vecdotq\.cuh|dequantize\.cuh|convert\.cuh|cp-async\.cuh")
"""The files whose functions are compared; a change in another file can concern any kernel."""
TYPE = re.compile(r"_(f16|f32|bf16|q[458]_[01])$")
"""How a function that is for one type ends."""
Rank = Callable[[str], int]
"""How likely a kernel case is to tell, by its name: the smallest number first."""


def ranking(options: RunOptions) -> Rank:
    """0 for a kernel case that what was changed since the base reaches, and 1 for the others; 0 for all without one."""
    base, tree = base_of(replace(options, beside_base=True)), options.tree
    if base is None or base.missing or tree is None or base.options.tree is None:
        return lambda name: 0
    old, new = Code(base.options.tree.root), Code(tree.root, options.patches)
    headers = {case.family: case.header for case in kernel_cases(tree)}
    try:
        files = {file for file in attention_files(tree) if old.text(file) != new.text(file)}
        changed = {name for file in files for name in changed_functions(old.text(file) or "", new.text(file) or "")}
        families = {
            family for family, header in headers.items() if header in files or reaches(new, header, files, changed)
        }
    except (OSError, InputError):
        return lambda name: 0
    found = [TYPE.search(name) for name in changed]
    types = {f"GGML_TYPE_{one[1].upper()}" for one in found if one is not None} if all(found) else set[str]()

    def rank(name: str) -> int:
        family, _, arguments = name.partition(" ")
        of_type = not types or family != "vec" or not types.isdisjoint(arguments.split(","))
        return 0 if family in families and of_type else 1

    return rank


def attention_files(tree: Tree) -> Iterator[str]:
    """The names of the files of ggml-cuda/ whose functions attention kernels use."""
    yield from sorted(path.name for path in (tree.root / CUDA).iterdir() if COMMON.fullmatch(path.name))


def changed_functions(old: str, new: str) -> set[str]:
    """The functions whose code is not the same in two texts of a file."""
    before, after = bodies_of(old), bodies_of(new)
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def reaches(code: Code, header: str, files: set[str], changed: set[str]) -> bool:
    """Whether a header calls a changed function of other files, itself or through functions of these files.

    A change outside of functions, such as that of a macro, concerns every header.
    """
    if not files:
        return False
    if not changed:
        return True
    bodies = {name: body for file in files for name, body in bodies_of(code.text(file) or "").items()}
    reached, more = set[str](), changed
    while more := more - reached:
        reached |= more
        word = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(more)))})\b")
        more = {name for name, body in bodies.items() if word.search(body)}
    return any(re.search(rf"\b{re.escape(name)}\b", code.text(header) or "") for name in reached)
