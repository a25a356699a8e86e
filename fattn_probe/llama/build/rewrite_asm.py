"""Rewrite inline PTX (`asm` statements)."""

import re
from dataclasses import dataclass
from itertools import pairwise

from fattn_probe.llama.cxx.tokens import UNMATCHED, Draft

KEYWORDS = ("asm", "__asm__", "__asm")
QUALIFIERS = frozenset({"volatile", "__volatile__", "goto", "inline"})
ESCAPES = {"\\n": "\n", "\\t": "\t", '\\"': '"', "\\\\": "\\"}


@dataclass(frozen=True)
class AsmStatement:
    """An `asm` statement, as indices of code tokens: its keyword, its brackets, and those that open its operands.

    The operands are the outputs, then the inputs, as PTX numbers them. `strings` make up its text: several groups if an
    #if chooses one of them. `partly`: an #if chooses a part of the text.
    """

    start: int
    opener: int
    stop: int
    strings: tuple[tuple[int, ...], ...]
    operands: tuple[int, ...]
    partly: bool


def _literal(word: str) -> str:
    """The characters of a string literal, with the escapes that PTX uses."""
    raw = re.fullmatch(r'\w*R"([^(]*)\(([\s\S]*)\)\1"', word)
    if raw:
        return raw.group(2)
    inside = word[word.index('"') + 1 : -1].replace("\\\n", "")
    return re.sub(r'\\[nt"\\]', lambda match: ESCAPES[match.group()], inside)


def parse_asm(draft: Draft, start: int) -> AsmStatement | None:
    """The `asm` statement at a keyword, or None if there is none."""
    opener = start + 1
    while draft.word(opener) in QUALIFIERS:
        opener += 1
    if draft.word(opener) != "(" or draft.mates[opener] == UNMATCHED:
        return None
    stop = draft.mates[opener]
    strings, operands, section, index = [], [], 0, opener + 1
    while index < stop:
        word = draft.words[index]
        section += len(word) if set(word) == {":"} else 0
        if section == 0 and draft.kinds[index] == "string":
            strings.append(index)
        if word == "(" and section in (1, 2):
            operands.append(index)
        index = max(index, draft.mates[index]) + 1
    groups = _alternatives(draft, opener, strings)
    return AsmStatement(start, opener, stop, groups or (tuple(strings),), tuple(operands), partly=not groups)


def _alternatives(draft: Draft, opener: int, strings: list[int]) -> tuple[tuple[int, ...], ...]:
    """The strings of an `asm`'s text: one group, or one for each branch of the #if that stands around all of them.

    Empty if an #if chooses a part of the text.
    """
    if not strings:
        return ((),)
    edges = [opener, *strings, strings[-1] + 1]
    first, *between, last = (draft.directives(before, index) for before, index in pairwise(edges))
    if not any([first, *between, last]):
        return (tuple(strings),)
    if first != ["if"] or last != ["endif"] or not all(each in ([], ["else"], ["elif"]) for each in between):
        return ()
    starts = [0, *(place for place, each in enumerate(between, 1) if each), len(strings)]
    return tuple(tuple(strings[start:stop]) for start, stop in pairwise(starts))


def mnemonic(text: str) -> str:
    """The first instruction of PTX text, without its operands."""
    words = text.split()
    return words[0].rstrip(";") if words else ""


def named_in(text: str) -> str:
    """The immediates and special registers of an instruction, as they stand in a function's name: `_16`, `_laneid`."""
    operands = text.replace("%%", "%").split(None, 1)[1:]
    found = re.findall(r"(?<![%\w.])(?:%([a-z]\w*)|(\d+))(?![\w.])", operands[0]) if operands else []
    return "".join(f"_{register or number}" for register, number in found)


def function_of(text: str, known_ptx: frozenset[str]) -> str | None:
    """The function for an instruction: with its immediates in the name, or without; None if there is neither."""
    name = mangle(mnemonic(text))
    return next((found for found in (name + named_in(text), name) if found in known_ptx), None)


def mangle(name: str) -> str:
    """A mnemonic as an identifier: `cp.async.cg.shared.global.L2::64B` -> `cp_async_cg_shared_global_L2_64B`."""
    return name.replace("::", "_").replace(".", "_")


def is_plain(text: str, operands: int) -> bool:
    """Whether PTX text is a single instruction with its operands in order, %0 first."""
    if len([line for line in re.split(r"[;\n]", text) if line.strip()]) != 1:
        return False
    used = re.findall(r"%(\d+)", text.replace("%%", ""))
    return [int(number) for number in dict.fromkeys(used)] == list(range(operands))


def _call(draft: Draft, statement: AsmStatement, functions: list[str]) -> None:
    """Replace the statement by a call; each operand's expression stays in place.

    Of several functions, each takes the place of its text, so that the preprocessor still chooses.
    """
    last = [draft.mates[opener] for opener in statement.operands]
    kept = {index for first, stop in zip(statement.operands, last, strict=True) for index in range(first, stop + 1)}
    for index in range(statement.start, statement.stop):
        if index != statement.opener and index not in kept:
            draft.replace(index, "")
    if len(functions) == 1:
        draft.replace(statement.start, functions[0])
    else:
        draft.replace(statement.opener, "")
        for group, function in zip(statement.strings, functions, strict=True):
            draft.replace(group[0], function)
        draft.before(statement.strings[-1][-1] + 1, "(")
    for close, _ in pairwise(last):
        draft.after(close, ",")


def rewrite_asm(draft: Draft, known_ptx: frozenset[str]) -> tuple[tuple[str, int], ...]:
    """Replace inline PTX by calls of `simt::ptx`; return the instructions (mnemonic, line) that it lacks."""
    unknown = []
    starts = sorted(index for keyword in KEYWORDS for index in draft.where.get(keyword, ()))
    for statement in filter(None, (parse_asm(draft, start) for start in starts)):
        texts = ["".join(_literal(draft.words[index]) for index in group) for group in statement.strings]
        functions = [_function(text, statement, known_ptx) for text in texts]
        if None not in functions:
            _call(draft, statement, [f"simt::ptx::{function}" for function in functions])
        else:
            name = mnemonic(texts[functions.index(None)])
            draft.blank(statement.start, statement.stop + 1)
            draft.replace(statement.start, f'simt::unknown_ptx("{name}", __FILE__, __LINE__)')
            unknown.append((name, draft.lines[statement.start]))
    return tuple(unknown)


def _function(text: str, statement: AsmStatement, known_ptx: frozenset[str]) -> str | None:
    """The function for a text of a statement; None for what the simulator lacks or would get wrong."""
    plain = not statement.partly and is_plain(text, len(statement.operands))
    return function_of(text, known_ptx) if plain else None
