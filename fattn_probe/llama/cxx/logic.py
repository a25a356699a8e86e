"""A C++ condition as a tree of `&&`, `||` and `!`, evaluated in three-valued logic.

A truth is True, False, or None if it is unknown.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Truths = dict[str, bool | None]
NUMBER = re.compile(r"(-?(?:0x[0-9a-f]+|\d+(?:\.\d*)?(?:e[-+]?\d+)?))(?: .*)?$", re.IGNORECASE)
POINTER = re.compile(r"(?:\(.*\*\) ?)?0x[0-9a-f]+\b", re.IGNORECASE)


@dataclass(frozen=True)
class Variable:
    """A variable of a condition: `text` as in the source, `ask` in the debugger's form (empty if there is none)."""

    text: str
    ask: str


@dataclass(frozen=True)
class Logic:
    """A node: an `atom` has `ask`, its expression for a debugger, and its variables; the others have children."""

    kind: Literal["and", "or", "not", "atom"]
    text: str
    children: tuple["Logic", ...] = ()
    ask: str = ""
    variables: tuple[Variable, ...] = ()

    def atoms(self) -> Iterator["Logic"]:
        """The leaves, in the source's order."""
        if self.kind == "atom":
            yield self
        for child in self.children:
            yield from child.atoms()

    def asks(self) -> Iterator[str]:
        """Every expression to evaluate."""
        for atom in self.atoms():
            yield from filter(None, (atom.ask, *(variable.ask for variable in atom.variables)))


def truth_of_value(value: str | None) -> bool | None:
    """The truth of a value that gdb printed, as a condition."""
    if value in ("true", "false", None):
        return None if value is None else value == "true"
    if POINTER.match(value):
        return not re.search(r"\b0x0+\b", value)
    match = NUMBER.match(value)
    return None if match is None else float(int(match[1], 0) if "x" in match[1].lower() else match[1]) != 0


def truths(logic: Logic, values: Mapping[str, str | None]) -> Truths:
    """The truth of each atom, by its text, from the debugger's values."""
    return {atom.text: truth_of_value(values.get(atom.ask)) for atom in logic.atoms()}


def holds(logic: Logic, known: Mapping[str, bool | None]) -> bool | None:
    """The truth of a condition: an `and` is False if one child is False, even if others are unknown."""
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
    """Fill in the truths that follow from the outcome: if an `and` held, every child held.

    If an `and` did not hold and all children but one did, that child did not hold.
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
    """The smallest parts that prevented the condition: for `a && b && (c || d)`, those of the three not True."""
    if holds(logic, known) is True:
        return ()
    if logic.kind == "and":
        return tuple(part for child in logic.children for part in lacking(child, known))
    return (logic,)
