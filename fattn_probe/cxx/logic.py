"""A condition as the tree of its `&&`, `||` and `!`, with what a debugger may be asked about its atoms.

Only the standard library is imported here. A truth is True, False, or None where nothing tells.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Truths = dict[str, bool | None]
NUMBER = re.compile(r"(-?(?:0x[0-9a-f]+|\d+(?:\.\d*)?(?:e[-+]?\d+)?))(?: .*)?$", re.IGNORECASE)
POINTER = re.compile(r"(?:\(.*\*\) ?)?0x[0-9a-f]+\b", re.IGNORECASE)


@dataclass(frozen=True)
class Part:
    """An expression as the source has it, and as the debugger is asked for it; `ask` is empty if it cannot be."""

    text: str
    ask: str


@dataclass(frozen=True)
class Logic:
    """`atom` has what is asked and, in `parts`, the variables in it; the others have children, `not` one."""

    kind: Literal["and", "or", "not", "atom"]
    text: str
    children: tuple["Logic", ...] = ()
    ask: str = ""
    parts: tuple[Part, ...] = ()

    def atoms(self) -> Iterator["Logic"]:
        """The leaves, in the source's order."""
        if self.kind == "atom":
            yield self
        for child in self.children:
            yield from child.atoms()

    def asks(self) -> Iterator[str]:
        """Every expression to evaluate."""
        for atom in self.atoms():
            yield from filter(None, (atom.ask, *(part.ask for part in atom.parts)))


def truth_of_value(value: str | None) -> bool | None:
    """Whether a value, as gdb prints it, is true as a condition."""
    if value in ("true", "false", None):
        return None if value is None else value == "true"
    if POINTER.match(value):
        return not re.search(r"\b0x0+\b", value)
    match = NUMBER.match(value)
    return None if match is None else float(int(match[1], 0) if "x" in match[1].lower() else match[1]) != 0


def truths(logic: Logic, values: Mapping[str, str | None]) -> Truths:
    """What the debugger said of each atom, by the atom's text."""
    return {atom.text: truth_of_value(values.get(atom.ask)) for atom in logic.atoms()}


def holds(logic: Logic, known: Mapping[str, bool | None]) -> bool | None:
    """Three-valued: False of `and` needs one child that is False, whatever the others are."""
    if logic.kind == "atom":
        return known.get(logic.text)
    found = [holds(child, known) for child in logic.children]
    if logic.kind == "not":
        return None if found[0] is None else not found[0]
    decisive = logic.kind == "or"
    if decisive in found:
        return decisive
    return None if None in found else not decisive


def settle(logic: Logic, outcome: bool | None, known: Truths) -> None:
    """Fill in what follows from the outcome: of an `and` that held, every child held.

    Of an `and` that did not hold, the one child that nothing is known of did not, if all others held.
    """
    if outcome is None:
        return
    if logic.kind == "atom":
        if known.get(logic.text) is None:
            known[logic.text] = outcome
    elif logic.kind == "not":
        settle(logic.children[0], not outcome, known)
    elif outcome == (logic.kind == "and"):
        for child in logic.children:
            settle(child, outcome, known)
    else:
        open_children = [child for child in logic.children if holds(child, known) is not (not outcome)]
        if len(open_children) == 1:
            settle(open_children[0], outcome, known)


def lacking(logic: Logic, known: Mapping[str, bool | None]) -> tuple[Logic, ...]:
    """The smallest parts for which the whole did not hold: of `a && b && (c || d)` those of the three not True."""
    if holds(logic, known) is True:
        return ()
    if logic.kind == "and":
        return tuple(part for child in logic.children for part in lacking(child, known))
    return (logic,)
