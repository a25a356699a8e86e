"""The faults of one expression: a part of it is replaced, or its value loses bits."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fattn_probe.cxx.statements import Span
from fattn_probe.cxx.tokens import Draft

RELATIONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&"}
ARITHMETIC = {"+": "-", "-": "+", "*": "+", "/": "*", "%": "/"}
SWAPPED = (
    *(("ne01", "ne02"), ("ne11", "ne12"), ("nb01", "nb02"), ("nb31", "nb33"), ("ncols1", "ncols2")),
    *((f"nb1{dim}", f"nb2{dim}") for dim in "123"),
    *(("stride_K", "stride_V"), ("nthreads_KQ", "nthreads_V"), ("DKQ", "DV")),
)
"""Names that are mistaken for one another: strides and sizes of other tensors or dimensions."""
OTHER_NAMES = dict(SWAPPED) | {b: a for a, b in SWAPPED}
FLAGS = frozenset({"use_logit_softcap", "oob_check", "use_cp_async"})
"""Template arguments whose other value is compiled anyway, or belongs to a small function."""
SMALL_TEMPLATES = re.compile(
    r"(\w*load_(tile|mask)|launch_fattn(_tile_switch_ncols2)?|flash_attn_stream_k_fixup\w*|flash_attn_ext_f16|"
    r"flash_attn_ext_vec|flash_attn_tile|ggml_cuda_flash_attn_ext_mma_f16_switch_ncols1)$"
)
COLUMNS = {"8": "4", "4": "2", "2": "1", "1": "2"}
"""Columns of heads for a number of query heads that share K: the other value's kernel exists."""
EXTREMES = frozenset({"FLT_MAX", "INFINITY", "SOFTMAX_FTZ_THRESHOLD"})
"""Constants of float: with numbers alone, a value has nothing to lose but its range."""
NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Change:
    """A fault in the tokens [start, stop): the text of the whole that replaces them, and what differs in it.

    `later` is text that runs after another token too, only with the fault: a statement that is moved.
    """

    start: int
    stop: int
    text: str
    operator: str
    before: str
    after: str
    later: tuple[int, str] | None = None


def of_condition(draft: Draft, span: Span) -> Iterator[Change]:
    """Relations that are off by one or turned around, and what an expression can have."""
    for index in range(*span):
        word = draft.words[index]
        shift = word in "<>" and word in (draft.word(index - 1), draft.word(index + 1))
        if word in RELATIONS and not shift and not in_template(draft, index):
            yield changed(draft, span, (index, index + 1), RELATIONS[word], "relation")
    yield from of_expression(draft, span)


def of_expression(draft: Draft, span: Span) -> Iterator[Change]:
    """Arithmetic, numbers, names of other strides, casts to fewer bits."""
    for index in range(*span):
        word = draft.words[index]
        if word in ARITHMETIC and is_binary(draft, index, span):
            yield changed(draft, span, (index, index + 1), ARITHMETIC[word], "arithmetic")
        elif NUMBER.fullmatch(word) and not in_template(draft, index):
            yield changed(draft, span, (index, index + 1), str(int(word) + 1), "constant")
        elif word in OTHER_NAMES and draft.word(index - 1) not in (".", "->", "::") and not in_template(draft, index):
            yield changed(draft, span, (index, index + 1), OTHER_NAMES[word], "other name")
        elif word == "int64_t" and draft.word(index + 1) in ("(", ")"):
            yield changed(draft, span, (index, index + 1), "int", "32 bits")
        elif word == "threadIdx" and draft.words[index + 1 : index + 3] == [".", "y"]:
            yield changed(draft, span, (index, index + 3), "0", "warp forgotten")


def of_template(draft: Draft, span: Span) -> Iterator[Change]:
    """Template arguments: a flag turned around, the two numbers of columns swapped, or another number of columns."""
    for index in range(*span):
        closer = closing_angle(draft, index) if draft.words[index] == "<" else None
        if closer is None or closer >= span[1] or not SMALL_TEMPLATES.match(draft.word(index - 1)):
            continue
        name = draft.word(index - 1)
        for at in range(index + 1, closer):
            word, behind = draft.words[at], draft.words[at + 1 : at + 3]
            kind = "template argument"
            if word in FLAGS:
                yield changed(draft, span, (at, at + 1), f"!{word}", kind)
            elif word == "ncols1" and behind == [",", "ncols2"] and name != "flash_attn_ext_f16":
                yield changed(draft, span, (at, at + 3), "ncols2, ncols1", kind)
            elif word in COLUMNS and at + 1 == closer and draft.words[index + 1] == "DKQ":
                yield changed(draft, span, (at, at + 1), COLUMNS[word], kind)


def shortened(draft: Draft, span: Span, declared: Sequence[str]) -> Iterator[Change]:
    """The value of an int64_t variable in 32 bits."""
    if "int64_t" in declared and "*" not in declared and len(draft.words[slice(*span)]) > 1:
        before = draft.written(*span)
        yield Change(*span, f"(int) ({before})", "32 bits", clipped(before), f"int({clipped(before)})")


def rounded(draft: Draft, span: Span, declared: Sequence[str], floats: frozenset[str]) -> Iterator[Change]:
    """A float's value through f16."""
    name = next((word for word in declared if word.isidentifier() and word != "const"), "")
    values = [draft.words[index] for index in range(*span) if draft.is_name(index)]
    if set(values) <= EXTREMES:
        return
    if (name == "float" and "*" not in declared) or name in floats:
        before = draft.written(*span)
        yield Change(*span, f"simt::through_half({before})", "f16", clipped(before), f"half({clipped(before)})")


def floats_of(draft: Draft) -> frozenset[str]:
    """The names that a file declares as floats, or as pointers to or arrays of them."""
    names = set()
    for index in draft.where.get("float", ()):
        at = index + 1
        while draft.word(at) in ("*", "&", "const", "__restrict__"):
            at += 1
        names.add(draft.word(at))
    return frozenset(names)


def clipped(text: str) -> str:
    """A text that is not too long to be shown."""
    return text if len(text) <= 60 else f"{text[:57]}..."


def changed(draft: Draft, span: Span, part: Span, text: str, operator: str) -> Change:
    """The expression with a part replaced."""
    pieces = (draft.written(span[0], part[0]), text, draft.written(part[1], span[1]))
    before = draft.written(*part)
    near = [draft.written(max(span[0], part[0] - 3), part[0]), draft.written(part[1], min(span[1], part[1] + 3))]
    shown = [" ".join(filter(None, (near[0], middle, near[1]))) for middle in (before, text)]
    return Change(span[0], span[1], " ".join(filter(None, pieces)), operator, shown[0], shown[1])


def is_binary(draft: Draft, index: int, span: Span) -> bool:
    """Whether an operator is between two values: neither a sign, nor a pointer's star, nor a template's."""
    if index <= span[0] or index + 1 >= span[1]:
        return False
    before, after = draft.word(index - 1), draft.word(index + 1)
    value = draft.is_name(index - 1) or NUMBER.match(before) is not None or before in (")", "]")
    pointer = draft.words[index] == "*" and (after in (")", ">", ",", "const", "*") or before == "const")
    cast = before == ")" and is_cast(draft, index - 1)
    return value and not pointer and not cast and not in_template(draft, index)


def is_cast(draft: Draft, closer: int) -> bool:
    """Whether a `)` ends a C cast to a pointer or a number: `(const half2 *)`, `(float)`."""
    inside = draft.words[draft.mates[closer] + 1 : closer]
    return bool(inside) and (inside[-1] == "*" or inside in (["float"], ["int"], ["int64_t"], ["half"], ["float2"]))


def in_template(draft: Draft, index: int) -> bool:
    """Whether a token is `<`, `>` or an argument of a template, as far as its line shows."""
    word = draft.words[index]
    if word == "<":
        return draft.is_name(index - 1) and closing_angle(draft, index) is not None
    for opener in range(index, max(index - 24, -1), -1):
        if draft.words[opener] in (";", "{", "}"):
            return False
        if draft.words[opener] == "<" and opener != index and draft.is_name(opener - 1):
            closer = closing_angle(draft, opener)
            if closer is not None and closer >= index:
                return True
    return False


def closing_angle(draft: Draft, index: int) -> int | None:
    """The `>` that ends the template arguments from `<` on, if these are followed by `(`, `::`, `>` or a name."""
    depth = 0
    for at in range(index, min(index + 40, len(draft.words))):
        word = draft.words[at]
        if word in (";", "{", "}", "&&", "||", "?"):
            return None
        depth += (word == "<") - (word == ">") - 2 * (word == ">>")
        if depth <= 0:
            after = draft.word(at + 1)
            return at if after in ("(", "::", ">", ",", ")", "{", ";", ":") or draft.is_name(at + 1) else None
    return None
