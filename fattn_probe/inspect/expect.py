"""`expect:` of a scenario: facts that must hold, named by the source's own variables."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from fattn_probe.inspect.facts import Facts, Value

AXES = {"x": 0, "y": 1, "z": 2}


@dataclass(frozen=True)
class Mismatch:
    """A fact that differs from `expect:`; without such a fact `found` is None and `hint` is the most similar name."""

    fact: str
    expected: Value
    found: Value
    hint: str = ""

    def __str__(self) -> str:
        if self.hint:
            return f"{self.fact}: expected {self.expected}, but there is no such fact; the nearest is {self.hint}"
        return f"{self.fact}: expected {self.expected}, found {self.found}"


def mismatches(expect: Mapping[str, Value], facts: Facts) -> list[Mismatch]:
    """The entries of `expect` that do not hold. `blocks_num.x` is the first number of `blocks_num`."""
    known = facts.flat()
    return [
        _mismatch(fact, expected, known) for fact, expected in expect.items() if lookup(fact, known) != (True, expected)
    ]


def lookup(fact: str, known: Mapping[str, Value]) -> tuple[bool, Value]:
    """Whether the fact exists, and its value."""
    if fact in known:
        return True, known[fact]
    name, _, axis = fact.rpartition(".")
    value = known.get(name)
    if axis in AXES and isinstance(value, list) and AXES[axis] < len(value):
        return True, value[AXES[axis]]
    return False, None


def _mismatch(fact: str, expected: Value, known: Mapping[str, Value]) -> Mismatch:
    there, found = lookup(fact, known)
    nearest = difflib.get_close_matches(fact, known, 1, 0.0)
    return Mismatch(fact, expected, found, "" if there or not nearest else nearest[0])
