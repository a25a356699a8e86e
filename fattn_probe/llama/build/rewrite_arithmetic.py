"""Rewrite device arithmetic: division, and the functions that -use_fast_math approximates."""

from collections.abc import Mapping

from fattn_probe.llama.cxx.tokens import Draft, Spans

# With -use_fast_math, as in ggml, expf and __expf are the same instruction, and so one function of the simulator.
APPROXIMATED = """
    expf exp2f exp10f logf log2f log10f powf sinf cosf tanf tanhf sqrtf rsqrtf fdividef
    __expf __exp10f __logf __log2f __log10f __powf __sinf __cosf __tanf __fdividef __frcp_rn
"""
FUNCTIONS = {name: f"simt::{name.lstrip('_')}" for name in APPROXIMATED.split()}
# Without -use_fast_math, only the intrinsics are approximated; expf etc. are nvcc's precise functions.
EXACT = {name: replacement for name, replacement in FUNCTIONS.items() if name.startswith("__")}
EXACT |= {name: f"simt::precise::{name}" for name in ("expf", "logf", "exp2f", "exp", "log")}
# The functions as clang compiles them for AMD GPUs; `__trap` is a macro in vendors/hip.h that calls abort()
AMD = EXACT | {name: f"simt::{name}" for name in ("expf", "tanhf")} | {"__trap": "simt::trap"}
# Functions with which a whole program's device code prints, asserts, reads the clock and allocates
OUTPUTS = {"printf": "simt::print", "assert": "simt_assert", "clock": "simt::ticks", "clock64": "simt::ticks"}
OUTPUTS |= {"malloc": "simt::allocate_in_kernel", "free": "simt::free_in_kernel", "abort": "simt::trap"}


def _is_literal(draft: Draft, index: int) -> bool:
    """Whether a token is an integer literal."""
    word = draft.word(index).lower()
    return word[:1].isdigit() and (word.startswith(("0x", "0b")) or not set(word) & set(".epf"))


def rewrite_divisions(draft: Draft, device: Spans) -> None:
    """Turn `a / b` into `a *simt::divided_by* b`, `a % b` likewise, and `a /= b` into `a *= simt::reciprocal_of = b`.

    Overloads then select the kind of division by the operand types. Precedence and associativity do not change, because
    they are the same for `*` and `/`. A division is kept if both operands are `sizeof` or integer literals.
    """
    for index in draft.where.get("/", ()):
        left, right = index - 1, index + 1
        is_size = draft.word(left) == ")" and draft.word(draft.mates[left] - 1) == "sizeof"
        constant = is_size or _is_literal(draft, left)
        if index in device and not (constant and (draft.word(right) == "sizeof" or _is_literal(draft, right))):
            draft.replace(index, "*simt::divided_by*")
    for index in draft.where.get("%", ()):
        if index in device and not _is_literal(draft, index + 1):
            draft.replace(index, "*simt::remainder_by*")
    for index in draft.where.get("/=", ()):
        if index in device:
            draft.replace(index, "*= simt::reciprocal_of =")


def rewrite_outputs(draft: Draft, device: Spans) -> None:
    """In a whole program's device code, replace calls that print, assert, read the clock or allocate."""
    replace_calls(draft, device, OUTPUTS)
    for index in draft.where.get("new", ()):
        if index in device and draft.word(index + 1) != "(" and draft.word(index - 1) != "operator":
            draft.replace(index, "new (simt::in_kernel)")
    for index in draft.where.get("delete", ()):
        if index in device and draft.word(index - 1) not in ("=", "operator"):
            # Turn `delete x` or `delete[] x` into a call.
            array = draft.word(index + 1) == "["
            draft.replace(index, "simt::delete_array_in_kernel" if array else "simt::delete_in_kernel")
            first = stop = index + (3 if array else 1)
            for bracket in range(index + 1, first):
                draft.replace(bracket, "")
            while draft.word(stop) not in (";", ",", ")", ":"):
                stop = draft.mates[stop] + 1 if draft.word(stop) in ("(", "[", "{") else stop + 1
            draft.before(first, "(")
            draft.after(stop - 1, ")")


def rewrite_assertions(draft: Draft, device: Spans) -> None:
    """Turn `static_assert` in device code into a check at run time.

    Unlike clang, g++ before 13 rejects an assertion that fails in a discarded branch of `if constexpr`.
    """
    for index in draft.where.get("static_assert", ()):
        if index in device:
            draft.replace(index, "simt::assert_constant")


def replace_calls(draft: Draft, device: Spans, names: Mapping[str, str]) -> None:
    """In device code, replace the names of called functions that nvcc and g++ compile differently."""
    for name, replacement in names.items():
        for index in draft.where.get(name, ()):
            is_call = draft.word(index + 1) == "(" and draft.word(index - 1) not in (".", "->", "::")
            if is_call and index in device:
                draft.replace(index, replacement)
