"""Rewrite CUDA C++ as C++17 for the simulator; every token stays on its line."""

import re
from dataclasses import dataclass
from pathlib import Path

from fattn_probe.llama.build.rewrite_ahead import rewrite_ahead, rewrite_shuffles
from fattn_probe.llama.build.rewrite_arithmetic import (
    AMD,
    EXACT,
    FUNCTIONS,
    replace_calls,
    rewrite_assertions,
    rewrite_divisions,
    rewrite_outputs,
)
from fattn_probe.llama.build.rewrite_asm import rewrite_asm
from fattn_probe.llama.build.rewrite_checker import rewrite_conversions, rewrite_copies, rewrite_pool, rewrite_symbols
from fattn_probe.llama.build.rewrite_flags import rewrite_flags
from fattn_probe.llama.build.rewrite_kernels import (
    Bodies,
    KernelInfo,
    keep_device_functions,
    keep_kernels,
    rewrite_kernels,
    rewrite_launches,
    rewrite_pointers,
)
from fattn_probe.llama.build.rewrite_products import rewrite_products
from fattn_probe.llama.build.rewrite_shared import rewrite_shared, rewrite_vectors
from fattn_probe.llama.cxx.functions import device_spans
from fattn_probe.llama.cxx.tokens import Draft, draft_of, tokenize

# The arithmetic of these files is scalar float32. nvcc unrolls their loops, and then fuses a product in one loop with a
# sum in the next. So does g++ if it unrolls the loops. Elsewhere, unrolling only doubles the compile time.
UNROLLED = ("fattn-vec", "fattn-tile")
SPLIT = re.compile(r"fattn.*\.cuh$")
"""The headers of attention kernels, whose instances can be compiled separately."""
UNROLL = re.compile(r"[ \t]*#[ \t]*pragma[ \t]+unroll\b")
UNROLL_TURNS = re.compile(UNROLL.pattern + r"[ \t]*\(?[ \t]*(\d+)[ \t]*\)?[ \t]*$")
ALL_TURNS = 64
UNROLL_IN_MACRO = re.compile(r"#[ \t]*pragma[ \t]+unroll\b[^\n\\]*")
DEFINE = re.compile(r"[ \t]*#[ \t]*define[ \t]+(\w+)")
WITHOUT_HIP = re.compile(r"[ \t]*#[ \t]*(?:ifndef[ \t]+|if[ \t]+!defined\()GGML_USE_HIP\b")


@dataclass(frozen=True)
class Style:
    """How to rewrite a file: like nvcc with `fast_math` (-use_fast_math) or without; with `hip`, like clang for AMD.

    A `whole` program also has host code, and its kernels may print. With `unrolls`, g++ unrolls the loops that nvcc is
    told to unroll; in UNROLLED files it always does. With `apart`, the body of each kernel of a SPLIT header becomes a
    separate function, which may be in another object. Functions not among the `bodies` are only declared.
    """

    fast_math: bool = True
    whole: bool = False
    unrolls: bool = False
    apart: bool = True
    bodies: Bodies = "all"
    hip: bool = False


UPSTREAM = Style()
"""The style for llama.cpp: ggml's CMakeLists.txt passes -use_fast_math to nvcc."""


@dataclass(frozen=True)
class Rewritten:
    """A file as C++17 text, its kernels, and the PTX instructions (mnemonic, line) that the simulator does not have."""

    path: str
    text: str
    kernels: tuple[KernelInfo, ...]
    unknown_ptx: tuple[tuple[str, int], ...]


def _rewrite_directives(draft: Draft, *, unrolls: bool) -> None:
    """Replace `#pragma unroll`, unknown to g++, with g++'s own pragma, or delete it; rewrite launches in macros.

    A literal number of iterations is kept. Inside a macro, where nvcc also accepts the pragma, the pragma is deleted.
    """
    for place, (kind, text) in enumerate(draft.tokens):
        if kind != "directive":
            continue
        if UNROLL.match(text):
            turns = UNROLL_TURNS.match(text)
            pragma = f"#pragma GCC unroll {turns.group(1) if turns else ALL_TURNS}"
            draft.out[place] = pragma * unrolls + "\n" * text.count("\n")
        elif DEFINE.match(text):
            draft.out[place] = UNROLL_IN_MACRO.sub("", text)
            if "<<<" in text:
                head, hash_sign, definition = draft.out[place].partition("#")
                body = draft_of(tokenize(definition))
                rewrite_launches(body)
                draft.out[place] = "".join((head, hash_sign, *body.out))


def _rewrite_lockstep(draft: Draft) -> None:
    """Restore each `__syncwarp()` that upstream omits for HIP: AMD waves run in lockstep, but simulated ones do not."""
    for index in draft.where.get("__syncwarp", ()):
        before = reversed(range(draft.places[index]))
        place = next((place for place in before if draft.tokens[place].kind not in ("space", "comment")), 0)
        if draft.tokens[place].kind == "directive" and WITHOUT_HIP.match(draft.tokens[place].text):
            draft.out[place] = "#if 1"


def rewrite(text: str, path: str, known_ptx: frozenset[str], style: Style = UPSTREAM) -> Rewritten:
    """Rewrite the CUDA C++ of `path` as C++17 that compiles after the simulator's prelude.

    Lines do not move, so file:line refers to the source. `known_ptx`: the functions in `simt::ptx` (mangled mnemonics).
    """
    draft = draft_of(tokenize(text))
    device = device_spans(draft)
    unrolls = style.unrolls or Path(path).name.startswith(UNROLLED)
    _rewrite_directives(draft, unrolls=unrolls and style.bodies != "none")
    rewrite_divisions(draft, device)
    replace_calls(draft, device, FUNCTIONS if style.fast_math else AMD if style.hip else EXACT)
    if style.whole:
        rewrite_outputs(draft, device_spans(draft, host_too=True))
    if style.hip:
        rewrite_assertions(draft, device)
        rewrite_vectors(draft)
        _rewrite_lockstep(draft)
    rewrite_shared(draft, device)
    rewrite_conversions(draft, device)
    rewrite_copies(draft, device)
    rewrite_ahead(draft, device)
    rewrite_pool(draft)
    rewrite_products(draft, device, hip=style.hip)
    rewrite_shuffles(draft, device)
    unknown_ptx = rewrite_asm(draft, known_ptx)
    split = style.apart and SPLIT.match(Path(path).name) is not None
    if split and style.bodies != "none":
        rewrite_flags(draft)
    kernels = rewrite_kernels(draft, bodies=style.bodies, split=split)
    if style.whole:
        rewrite_pointers(draft)
        rewrite_symbols(draft)
    rewrite_launches(draft, kernels if style.whole else ())
    if style.bodies == "device":
        keep_device_functions(draft)
    elif style.bodies == "kernels":
        keep_kernels(draft)
    return Rewritten(path, "".join(draft.out), kernels, unknown_ptx)
