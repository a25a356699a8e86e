"""Marks for the checker: vector copies, conversions from 64 to 32 bits, returned pool memory, device variables."""

import re

from fattn_probe.llama.cxx.functions import header_start
from fattn_probe.llama.cxx.tokens import UNMATCHED, Draft, Spans

POOL = "ggml_cuda_pool_leg"
"""The pool with GGML_CUDA_NO_VMM. It keeps a freed buffer for later ops; the VMM pool reuses memory at once."""
NARROW = {"int": "int", "int32_t": "int", "unsigned": "unsigned", "uint32_t": "unsigned"}
OTHER_TYPES = frozenset({"long", "short", "unsigned"})
"""Words that change the type of an `int` after them."""
WRITTEN = re.compile(r" SIMT_INTO\(\w+\)")
VECTORS = frozenset({"int2", "int4", "uint2", "uint4", "float2", "float4"})
KEYWORDS = ("__device__", "__constant__", "__managed__")
ATTRIBUTES = frozenset({"alignas", "__align__", "__attribute__", "decltype"})
ELSEWHERE = frozenset({"extern", "const", "constexpr", "template", "using", "typedef", "operator"})
"""Words of declarations that need no mark, because these allocate no memory, or memory that is never written."""
TYPES = frozenset({"struct", "union", "class", "enum"})


def rewrite_pool(draft: Draft) -> None:
    """Call `simt_hand_out` where the pool's `alloc` returns a buffer, and `simt_give_back` at the start of its `free`.

    The pool allocates 5 % more than it is asked for, and hands out larger buffers again. `simt_hand_out` reduces them
    to the requested size; without it, a kernel could write past the end unnoticed.
    """
    if not (frees := _members(draft, "free")) or not (allocs := _members(draft, "alloc")):
        return
    for pointer, body in frees:
        draft.after(body, f" void *simt_give_back(void *); {pointer} = simt_give_back({pointer});")
    for size, body in allocs:
        draft.after(body, " void *simt_hand_out(void *, size_t);")
        for index in draft.where.get("return", ()):
            if body < index < draft.mates[body] and draft.word(index + 2) == ";":
                draft.replace(index + 1, f"simt_hand_out({draft.words[index + 1]}, {size})")


def _members(draft: Draft, name: str) -> list[tuple[str, int]]:
    """For each definition of a pool's member function of this name: its first parameter, and the index of its `{`."""
    found = []
    for pool in draft.where.get(POOL, ()):
        if draft.word(pool - 1) != "struct":
            continue
        start = draft.words.index("{", pool)
        for member in draft.where.get(name, ()):
            if start < member < draft.mates[start] and draft.word(member - 1) in ("void", "*"):
                parameter = draft.words[draft.words.index(",", member) - 1]
                found.append((parameter, draft.words.index("{", draft.mates[member + 1])))
    return found


def rewrite_conversions(draft: Draft, device: Spans) -> None:
    """Put `SIMT_INTO(type)` before the value of each `int name = value` in device code.

    This includes `unsigned` and the 32-bit types of <cstdint>. A value of a single token needs no mark: it is a literal
    or a name, and a lone name is rarely an index.
    """
    for word, type_name in NARROW.items():
        for index in draft.where.get(word, ()):
            other = not OTHER_TYPES.isdisjoint((draft.word(index - 1), draft.word(index + 1)))
            declares = draft.is_name(index + 1) and draft.word(index + 2) == "=" and draft.word(index + 3) != "{"
            if index in device and not other and declares and draft.word(index + 4) not in (";", ","):
                draft.after(index + 2, f" SIMT_INTO({type_name})")


def without_conversions(text: str) -> str:
    """A rewritten text without the marks of `rewrite_conversions`, for patterns like `int kb0_stop = min`."""
    return WRITTEN.sub("", text)


def rewrite_copies(draft: Draft, device: Spans) -> None:
    """Put `SIMT_WHOLE()` around both sides of each `((int4 *) to)[i] = ((const int4 *) from)[i];` in device code."""
    for equals in draft.where.get("=", ()):
        if equals not in device or draft.word(equals - 1) != "]":
            continue
        left = draft.mates[draft.mates[equals - 1] - 1]
        right = _end_of_element(draft, equals + 1)
        if _end_of_element(draft, left) == equals - 1 and right != UNMATCHED and draft.word(right + 1) == ";":
            for start, end in ((left, equals - 1), (equals + 1, right)):
                draft.before(start, "SIMT_WHOLE(")
                draft.after(end, ")")


def _end_of_element(draft: Draft, start: int) -> int:
    """The last token of `((int4 *) pointer)[i]` at `start`; UNMATCHED for any other text."""
    vector = start + 3 if draft.word(start + 2) == "const" else start + 2
    cast = draft.word(start) == "(" == draft.word(start + 1) and draft.word(vector) in VECTORS
    if not cast or (draft.word(vector + 1), draft.word(vector + 2)) != ("*", ")"):
        return UNMATCHED
    bracket = draft.mates[start] + 1
    return draft.mates[bracket] if draft.word(bracket) == "[" else UNMATCHED


def rewrite_symbols(draft: Draft) -> None:
    """Put `SIMT_GUARD(name)` after the declaration of each device variable (native/sim/symbols.h)."""
    seen: set[int] = set()
    for index in sorted(index for word in KEYWORDS for index in draft.where.get(word, ())):
        variables, end = _variables(draft, index)
        if end in seen or not variables or not _is_outside(draft, index):
            continue
        seen.add(end)
        storage = "static" if "static" in draft.words[header_start(draft, index) : end] else ""
        macros = (
            f"SIMT_GUARD{'_INITIALISED' if valued else ''}({storage}, {name})" for name, valued in variables.items()
        )
        draft.after(end, f" {' '.join(macros)}")


def _variables(draft: Draft, index: int) -> tuple[dict[str, bool], int]:
    """The variables declared with the keyword at `index` and whether each is initialised, and the index of the `;`."""
    start = header_start(draft, index)
    if draft.word(start - 1) == ">" or not ELSEWHERE.isdisjoint(draft.words[start:index]):
        return {}, index
    found: dict[str, bool] = {}
    name, angles = index, 0
    while (word := draft.word(index)) not in {"", "(", ")", "]", "}"} and word not in ELSEWHERE:
        if word in ATTRIBUTES and draft.word(index + 1) == "(":
            index = draft.behind(index + 1)
            continue
        angles += (word == "<") - (word == ">")
        defines = not TYPES.isdisjoint(draft.words[name - 1 : name + 1])  # then a `{` after the name defines a type
        if angles == 0 and (word in ("=", ",", ";") or (word == "{" and index == name + 1 and not defines)):
            end = index
            while draft.word(end) not in (",", ";", ""):
                end = draft.behind(end)
            found[draft.words[name]] = end > index
            if draft.word(end) == ";":
                return found, end
            index = end
        name = index if draft.is_name(index) else name
        index = draft.behind(index)
    return {}, index


def _is_outside(draft: Draft, index: int) -> bool:
    """Whether a token is outside all braces except those of namespaces and `extern "C"`."""
    for brace in draft.where.get("{", ()):
        if brace < index < draft.mates[brace]:
            start = brace - 1
            while (draft.is_name(start) and draft.words[start] != "namespace") or draft.word(start) == "::":
                start -= 1
            if draft.word(start) not in ("namespace", '"C"'):
                return False
    return True
