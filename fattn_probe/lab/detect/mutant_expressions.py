"""Faults in a single expression: a part of it is replaced, or its value loses bits."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fattn_probe.llama.cxx.tokens import Draft, Span

RELATIONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&"}
ARITHMETIC = {"+": "-", "-": "+", "*": "+", "/": "*", "%": "/"}
SWAPPED = (
    *(("ne01", "ne02"), ("ne11", "ne12"), ("nb01", "nb02"), ("nb31", "nb33"), ("ncols1", "ncols2")),
    *((f"nb1{dim}", f"nb2{dim}") for dim in "123"),
    *(("stride_K", "stride_V"), ("nthreads_KQ", "nthreads_V"), ("DKQ", "DV")),
)
"""Names that are easily confused: strides and sizes of different tensors or dimensions."""
OTHER_NAMES = dict(SWAPPED) | {b: a for a, b in SWAPPED}
FLAGS = frozenset({"use_logit_softcap", "oob_check", "use_cp_async"})
"""Template arguments to invert: the opposite value is compiled anyway, or only in a small function."""
SMALL_TEMPLATES = re.compile(
    r"(\w*load_(tile|mask)|launch_fattn(_tile_switch_ncols2)?|flash_attn_stream_k_fixup\w*|flash_attn_ext_f16|"
    r"flash_attn_ext_vec|flash_attn_tile|ggml_cuda_flash_attn_ext_mma_f16_switch_ncols1)$"
)
COLUMNS = {"8": "4", "4": "2", "2": "1", "1": "2"}
"""The query heads that share K in a kernel, and a different number for which a kernel also exists."""
EXTREMES = frozenset({"FLT_MAX", "INFINITY", "SOFTMAX_FTZ_THRESHOLD"})
"""Float constants: a value computed only from these and literals is not rounded to f16, as it could only lose range."""
NUMBER = re.compile(r"\d+")
GUARDS = frozenset({"&&", "||", "?"})
"""The operand after one of these may not be evaluated."""
READS = frozenset({"[", "->"})
DIVISIONS = frozenset({"/", "%"})
POSITIVE = re.compile(r"[*+]|\d+")
"""Tokens that cannot turn a divisor computed from sizes into 0."""
EFFECTS = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "|=", "&=", "^=", "<<=", ">>=", "++", "--", "{", "&"})
HARMLESS = re.compile(
    r"f?(min|max)f?|fabsf|sizeof|(int|uint)(8|16|32|64)?(_t)?|size_t|float|half|bool|make_(float2|half2)|u?int64_t|return|"
    r"__(low2float|high2float|half2float|float2half)|GGML_CUDA_CC_IS_\w+|(turing|ampere|volta|blackwell)_\w+_available"
)


@dataclass(frozen=True)
class Mutation:
    """A fault in the tokens [start, stop): the text that replaces them, and the part that differs.

    `later` is code that runs after a later token if the fault is on: a moved statement. `compared` are expressions of
    the same type with and without the fault, free of side effects: if their values are equal, it has no effect.
    """

    start: int
    stop: int
    text: str
    operator: str
    before: str
    after: str
    later: tuple[int, str] | None = None
    compared: tuple[str, str] | None = None
    amd: bool = False


def of_condition(draft: Draft, span: Span) -> Iterator[Mutation]:
    """Comparisons that are off by one or inverted, and the faults that any expression can have."""
    for index in range(*span):
        word = draft.words[index]
        shift = word in "<>" and word in (draft.word(index - 1), draft.word(index + 1))
        if word in RELATIONS and not shift and not in_template(draft, index):
            yield changed(draft, span, (index, index + 1), RELATIONS[word], "relation")
    yield from of_expression(draft, span)


def of_expression(draft: Draft, span: Span) -> Iterator[Mutation]:
    """Different arithmetic, numbers and strides, and casts to fewer bits."""
    for index in range(*span):
        word = draft.words[index]
        if word in ARITHMETIC and is_binary(draft, index, span):
            yield changed(draft, span, (index, index + 1), ARITHMETIC[word], "arithmetic")
        elif NUMBER.fullmatch(word) and not in_template(draft, index) and not is_immediate(draft, index):
            yield changed(draft, span, (index, index + 1), str(int(word) + 1), "constant")
        elif word in OTHER_NAMES and draft.word(index - 1) not in (".", "->", "::") and not in_template(draft, index):
            yield changed(draft, span, (index, index + 1), OTHER_NAMES[word], "other name")
        elif word == "int64_t" and draft.word(index + 1) in ("(", ")"):
            yield changed(draft, span, (index, index + 1), "int", "32 bits")
        elif word == "threadIdx" and draft.words[index + 1 : index + 3] == [".", "y"]:
            yield changed(draft, span, (index, index + 3), "0", "warp forgotten")


def of_template(draft: Draft, span: Span) -> Iterator[Mutation]:
    """Template arguments: a flag inverted, the two column counts swapped, or a different column count."""
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


def of_value(draft: Draft, span: Span, declared: Sequence[str], floats: frozenset[str]) -> Iterator[Mutation]:
    """The value of an int64_t variable truncated to 32 bits, and a float's value converted to f16 and back."""
    name = next((word for word in declared if word.isidentifier() and word != "const"), "")
    before = draft.written(*span)
    shown = before if len(before) <= 60 else f"{before[:57]}..."
    found = []
    if "int64_t" in declared and "*" not in declared and len(draft.words[slice(*span)]) > 1:
        found.append((f"(int) ({before})", "32 bits", f"int({shown})"))
    is_float = (name == "float" and "*" not in declared) or name in floats
    if is_float and not {draft.words[index] for index in range(*span) if draft.is_name(index)} <= EXTREMES:
        found.append((f"simt::through_half({before})", "f16", f"half({shown})"))
    for text, kind, after in found:
        yield Mutation(*span, text, kind, shown, after, compared=(text, before) if is_pure(draft, span) else None)


def floats_of(draft: Draft) -> frozenset[str]:
    """The names that a file declares as floats, or as pointers to or arrays of them."""
    names = set()
    for index in draft.where.get("float", ()):
        at = index + 1
        while draft.word(at) in ("*", "&", "const", "__restrict__"):
            at += 1
        names.add(draft.word(at))
    return frozenset(names)


def changed(draft: Draft, span: Span, part: Span, text: str, operator: str) -> Mutation:
    """The expression with a part replaced."""
    pieces = (draft.written(span[0], part[0]), text, draft.written(part[1], span[1]))
    before = draft.written(*part)
    near = [draft.written(max(span[0], part[0] - 3), part[0]), draft.written(part[1], min(span[1], part[1] + 3))]
    shown = [" ".join(filter(None, (near[0], middle, near[1]))) for middle in (before, text)]
    whole, both = " ".join(filter(None, pieces)), compared(draft, span, part, text)
    return Mutation(*span, whole, operator, shown[0], shown[1], compared=both)


def compared(draft: Draft, span: Span, part: Span, text: str) -> tuple[str, str] | None:
    """The widest expression around a part that can be evaluated both with and without the change."""
    for start, stop in around(draft, span, part):
        if is_pure(draft, (start, stop)) and is_safe(draft, (start, stop), part, text):
            pieces = (draft.written(start, part[0]), text, draft.written(part[1], stop))
            return " ".join(filter(None, pieces)), draft.written(start, stop)
    return None


def around(draft: Draft, span: Span, part: Span) -> Iterator[Span]:
    """The expression around a part, then the contents of each bracket around the part, from one comma to the next.

    Each of these is also yielded shortened, up to the operand that the part guards, unless the part is `&&` or `||`.
    """
    guards = GUARDS if draft.words[part[0]] not in GUARDS else frozenset[str]()
    start, stop = span
    while True:
        level = [*draft.outer(start, stop)]
        start = max((index + 1 for index in level if draft.words[index] == "," and index < part[0]), default=start)
        stop = min((index for index in level if draft.words[index] == "," and index >= part[1]), default=stop)
        yield start, stop
        yield start, min((i for i in level if draft.words[i] in guards and part[1] <= i < stop), default=stop)
        inside = [index for index in level if index < part[0] < draft.mates[index]]
        if not inside:
            return
        start, stop = inside[-1] + 1, draft.mates[inside[-1]]


def is_safe(draft: Draft, span: Span, part: Span, text: str) -> bool:
    """Whether the changed expression reads only what the original reads, and has the same divisors."""
    brackets = [index for index in range(span[0], part[0]) if index < part[0] < draft.mates[index]]
    for bracket in brackets:  # an index, unless it is still an index of a tensor's `ne` or `nb`
        size = draft.word(bracket - 1) in ("ne", "nb") and draft.mates[bracket] == bracket + 2 and text in "0123"
        if draft.words[bracket] == "[" and not size:
            return False
    operands = [index - 1 for index in (*brackets, part[0]) if index > span[0]]
    if any(draft.words[index] in DIVISIONS for index in operands) and not POSITIVE.fullmatch(text):
        return False
    stars = [index for index in range(span[0], part[0]) if draft.words[index] == "*"]
    if any(index == span[0] or not is_value(draft, index - 1) for index in stars):  # dereferences a pointer
        return False
    guards = (index for index in range(part[0], span[1]) if draft.words[index] in GUARDS)
    return not (READS | DIVISIONS) & set(draft.words[next(guards, span[1]) : span[1]])


def is_value(draft: Draft, index: int) -> bool:
    """Whether a token is the last one of a value."""
    word = draft.word(index)
    if word == ")":  # it may end a C cast to a pointer or a number: `(const half2 *)`, `(float)`
        inside = draft.words[draft.mates[index] + 1 : index]
        number = inside in (["float"], ["int"], ["int64_t"], ["half"], ["float2"])
        return not (number or inside[-1:] == ["*"])
    return draft.is_name(index) or NUMBER.match(word) is not None or word == "]"


def is_pure(draft: Draft, span: Span) -> bool:
    """Whether an expression can be evaluated twice: it has no side effects, and calls only harmless functions."""
    for index in range(*span):
        word, name = draft.words[index], draft.word(index - 1)
        calls = name == ">" or (draft.is_name(index - 1) and not HARMLESS.fullmatch(name))
        if word in EFFECTS or (word == "(" and index > span[0] and calls):
            return False
    return True


def is_binary(draft: Draft, index: int, span: Span) -> bool:
    """Whether an operator is between two values: not a sign, a pointer's star or a template's bracket."""
    if index <= span[0] or index + 1 >= span[1]:
        return False
    before, after = draft.word(index - 1), draft.word(index + 1)
    pointer = draft.words[index] == "*" and (after in (")", ">", ",", "const", "*") or before == "const")
    return is_value(draft, index - 1) and not pointer and not in_template(draft, index)


def is_immediate(draft: Draft, index: int) -> bool:
    """Whether a number is among the last arguments of an instruction, where the compiler demands constants."""
    closer = next((at for at in range(index, len(draft.words)) if draft.words[at] == ")"), index)
    alone = draft.word(index - 1) == "," and draft.word(index + 1) in (",", ")")
    return alone and draft.word(draft.mates[closer] - 1).startswith("__builtin_")


def in_template(draft: Draft, index: int) -> bool:
    """Whether a token is `<`, `>` or an argument of a template, judging by its line."""
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
    """The `>` that ends the template arguments after `<`, if it is followed by `(`, `::`, `>` or a name."""
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
