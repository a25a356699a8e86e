"""Rewrite inline PTX (`asm` statements)."""

import re
from dataclasses import dataclass
from itertools import pairwise

from fattn_probe.llama.cxx.tokens import UNMATCHED, Draft

ALIKE = (
    (r"\.L2::\d+B", ""),  # a hint about how much the L2 cache fetches, which the simulator ignores
    (r"\.(x\d(?:\.trans)?)\.m8n8", r".m8n8.\1"),
    (r"^(ldmatrix\.\S*)\.shared", r"\1"),  # in C++, the address has a type
    (r"\.approx\.ftz", ".approx"),
)
"""Variants that are the same instruction to the simulator: a pattern, and its replacement."""
WITHOUT_EFFECT = re.compile(r"s_(nop|setprio|wait\w+)$")
"""AMD's instructions that only wait or only affect the speed, as the simulator executes one instruction at a time."""
ESCAPES = {"\\n": "\n", "\\t": "\t", '\\"': '"', "\\\\": "\\"}


@dataclass(frozen=True)
class AsmStatement:
    """An `asm` statement, as indices of code tokens: its keyword, its brackets, the brackets that open its operands.

    The operands are the outputs, then the inputs, in PTX's numbering. `strings` are the literals of its text, in
    several groups if an #if chooses among them. With `partly`, an #if chooses only a part of the text.
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
    """The `asm` statement that begins at a keyword; None if no statement does."""
    opener = start + 1
    while draft.word(opener) in {"volatile", "__volatile__", "goto", "inline"}:
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
    """The strings of an `asm` statement's text: one group, or one for each branch of an #if around all of them.

    Empty if an #if chooses only a part of the text.
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


def _call(draft: Draft, statement: AsmStatement, functions: list[str]) -> None:
    """Replace the statement with a call; each operand's expression stays in place.

    With several functions, each replaces the text of its branch, so the preprocessor still chooses.
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
    """Replace inline PTX with calls to `simt::ptx`; returns the instructions (mnemonic, line) missing from it."""
    unknown = []
    starts = sorted(index for keyword in ("asm", "__asm__", "__asm") for index in draft.where.get(keyword, ()))
    for statement in filter(None, (parse_asm(draft, start) for start in starts)):
        texts = ["".join(_literal(draft.words[index]) for index in group) for group in statement.strings]
        operands = None if statement.partly else len(statement.operands)
        functions = [_function(text, operands, known_ptx) for text in texts]
        if None not in functions:
            _call(draft, statement, [f"simt::ptx::{function}" for function in functions])
        else:
            name = _mnemonic("".join(_instructions(texts[functions.index(None)])[:1]))
            draft.blank(statement.start, statement.stop + 1)
            draft.replace(statement.start, f'simt::unknown_ptx("{name}", __FILE__, __LINE__)')
            unknown.append((name, draft.lines[statement.start]))
    return tuple(unknown)


def _instructions(text: str) -> list[str]:
    """The instructions of an `asm` text that have an effect in the simulator."""
    lines = [line for line in re.split(r"[;\n]", text) if line.strip()]
    return [line for line in lines if not WITHOUT_EFFECT.match(_mnemonic(line))]


def _mnemonic(text: str) -> str:
    """The first instruction of PTX text, without its operands."""
    return text.split(None, 1)[0].rstrip(";") if text.strip() else ""


def _function(text: str, operands: int | None, known_ptx: frozenset[str]) -> str | None:
    """The function for PTX text, preferably the function with immediates and special registers in its name.

    Returns None for unsupported PTX: an unknown instruction, or any text other than a single instruction
    with operands in order, from %0. `cp.async.cg.shared.global [%0], [%1], 16;` becomes `cp_async_cg_shared_global_16`.
    """
    used = dict.fromkeys(re.findall(r"%(\d+)", text.replace("%%", "")))
    instructions = _instructions(text)
    if operands is None or len(instructions) > 1 or list(map(int, used)) != list(range(operands)):
        return None
    text = (instructions or ["s_nop" if text.strip() else "nothing"])[0]
    name = _mnemonic(text)
    for pattern, replacement in ALIKE:
        name = re.sub(pattern, replacement, name)
    name = name.replace("::", "_").replace(".", "_")
    _, written = (*text.replace("%%", "%").split(None, 1), "")[:2]
    named = re.findall(r"(?<![%\w.])(?:%([a-z]\w*)|(\d+))(?![\w.])", written)
    longer = name + "".join(f"_{register or number}" for register, number in named)
    return next((found for found in (longer, name) if found in known_ptx), None)
