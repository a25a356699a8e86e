"""Warp-wide loops: shuffles become butterflies (native/sim/shuffle.h), lanes run ahead of mma (native/sim/ahead.h)."""

import re
from collections.abc import Iterator

from fattn_probe.llama.cxx.functions import function_at
from fattn_probe.llama.cxx.tokens import UNMATCHED, Draft, Spans

SHUFFLE = r"__shfl_xor_sync \( (?P<mask>\w+) , (?P<value>\w+) , (?P<offset>\w+) , (?P<width>\w+) \)"
HEADER = re.compile(r"for \( int (?P<offset>\w+) = (?P<first>.+?) ; (?P=offset) > 0 ; (?P=offset) >>= 1 \) \{")
SUM = re.compile(rf"(?P<result>\w+) \+= {SHUFFLE} ; \}}")
CALL = re.compile(rf"(?P<result>\w+) = (?P<function>\w+) \( (?P<own>\w+) , {SHUFFLE} \) ; \}}")

MOST_TOKENS = 24
"""The limit on the length of a loop's body that may match `SUM` or `CALL`, in tokens."""
MULTIPLY = "mma"
LOADS = "load_ldmatrix"
GENERIC_LOAD = "load_generic"
ALLOWED_CALLS = frozenset({"for", "if", "constexpr", "static_assert", "sizeof", MULTIPLY})
BUILT_INS = frozenset({"threadIdx", "blockIdx", "blockDim", "gridDim"})
ASSIGNMENTS = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--", "->"})
LEAVES = frozenset({"return", "break", "continue", "goto", "asm"})
STATEMENT_ENDS = frozenset({"{", "}", ";"})


def rewrite_shuffles(draft: Draft, device: Spans) -> None:
    """Turn a loop of `x += __shfl_xor_sync(mask, x, offset, width)`, for offset, offset/2 ... 1, into one butterfly.

    A loop of `x = f(x, __shfl_xor_sync(...))` becomes one too. The loop itself stays and runs once, because a pragma
    may precede it. Other loops with shuffles are not changed.
    """
    for start in draft.where.get("for", ()):
        close = draft.mates[start + 1]
        if start not in device or close == UNMATCHED or draft.word(close + 1) != "{":
            continue
        end = draft.mates[close + 1]
        if end == UNMATCHED or end - close > MOST_TOKENS:
            continue
        operation = _operation(" ".join(draft.words[start : close + 2]), " ".join(draft.words[close + 2 : end + 1]))
        if operation is not None:
            draft.replace(close - 2, "=")
            draft.replace(close - 1, "0")
            draft.blank(close + 2, end)
            draft.replace(close + 2, operation)


def _operation(header: str, body: str) -> str | None:
    """The statement that replaces all iterations of a loop of shuffles; None for any other loop."""
    turns, match = HEADER.fullmatch(header), SUM.fullmatch(body) or CALL.fullmatch(body)
    if turns is None or match is None:
        return None
    value = match["value"]
    own = match.groupdict().get("own") or value
    if match["result"] != value or own != value or match["offset"] != turns["offset"]:
        return None
    function = match.groupdict().get("function")
    result = f"{function}(own, other)" if function else "own + other"
    lanes = f"{match['mask']}, {value}, {match['offset']}, {match['width']}"
    return f"{value} = simt::butterfly({lanes}, [](auto own, auto other) {{ return {result}; }});"


def rewrite_ahead(draft: Draft, device: Spans) -> None:
    """Mark the outermost loops of device code that only load fragments and multiply them, so that lanes can run ahead.

    A lane reads no fragment itself, so it may leave such a loop before the loop's instructions are executed. Functions
    that load or multiply fragments with ordinary code first wait for these instructions.
    """
    stop = -1
    for start in draft.where.get("for", ()):
        if start < stop or start not in device or draft.word(start - 1) not in STATEMENT_ENDS:
            continue
        header = draft.mates[start + 1]
        if header == UNMATCHED or draft.word(header + 1) != "{" or (end := draft.mates[header + 1]) == UNMATCHED:
            continue
        called = [(name, draft.word(bracket + 1)) for name, bracket in _calls(draft, start, end)]
        sums = {argument for name, argument in called if name == MULTIPLY}
        loaded = {argument for name, argument in called if name.startswith(LOADS)}
        declared = _declared(draft, start, end)
        # A sum declared in the loop is initialised in each iteration; instructions run after the loop would miss that.
        if sums and not sums & declared and all(_harmless(draft, index) for index in _body(draft, start, end)):
            draft.before(start, f"simt::begin_ahead({'true' if loaded <= declared else 'false'}); ")
            draft.after(end, " simt::end_ahead();")
            stop = end
    for specifier in draft.where.get("__device__", ()):
        function = function_at(draft, specifier)
        if function is None or not (function.name in (MULTIPLY, GENERIC_LOAD) or function.name.startswith(LOADS)):
            continue
        statements = set()
        for index in range(function.start, function.stop):
            stores = draft.words[index] in ASSIGNMENTS and draft.words[index - 1] == "]"
            copies = draft.words[index] == "(" and "memcpy" in _callee(draft, index)
            if stores or copies:
                statements.add(_statement(draft, index, function.start - 1))
        for statement in statements:
            draft.before(statement, "simt::end_ahead(); ")


def _calls(draft: Draft, start: int, end: int) -> Iterator[tuple[str, int]]:
    """(name, index of the bracket) of each call in a loop, including `for` and `if`."""
    for index in _body(draft, start, end):
        if draft.words[index] == "(" and (name := _callee(draft, index)):
            yield name, index


def _declared(draft: Draft, start: int, end: int) -> set[str]:
    """The variables that a loop declares in its body."""
    return {
        draft.words[index]
        for index in _body(draft, start, end)
        if draft.is_name(index)
        and (draft.is_name(index - 1) or draft.words[index - 1] == ">")
        and draft.word(index + 1) in (";", "=", "[", "{")
    }


def _body(draft: Draft, start: int, end: int) -> Iterator[int]:
    """The tokens of a loop, without the headers of its inner loops."""
    index = start
    while index < end:
        if draft.words[index] == "for":
            index = draft.mates[index + 1]
        yield index
        index += 1


def _harmless(draft: Draft, index: int) -> bool:
    """Whether a token is allowed in a loop through which lanes run ahead."""
    word = draft.words[index]
    if word == "(":
        name = _callee(draft, index)
        return not name or name in ALLOWED_CALLS or name.startswith(LOADS)
    if word == ".":
        return draft.word(index - 1) in BUILT_INS
    if word == "[":  # indexes an element, does not begin a lambda
        return draft.is_name(index - 1) or draft.word(index - 1) in (")", "]")
    if word == "=":
        return draft.word(index - 2) == "int"
    return word not in ASSIGNMENTS and word not in LEAVES


def _callee(draft: Draft, bracket: int) -> str:
    """The name before an opening bracket, without template arguments; empty if the bracket opens no call."""
    index = bracket - 1
    if draft.word(index) == ">":
        index = draft.back_over_angles(index) - 1
    return draft.word(index) if draft.is_name(index) else ""


def _statement(draft: Draft, index: int, body: int) -> int:
    """The first token of the statement that contains a token; a loop without braces counts as one statement."""
    while index > body + 1 and draft.words[index - 1] not in STATEMENT_ENDS:
        index -= 1
        if draft.words[index] in (")", "]") and draft.mates[index] != UNMATCHED:
            index = draft.mates[index]
    return index
