"""`expect:` of a scenario: facts that must hold, named by the source's own variables."""

import difflib
from collections.abc import Mapping

from fattn_probe.daily.inspect.facts import Facts, Value

AXES = {"x": 0, "y": 1, "z": 2}


def mismatches(expect: Mapping[str, Value], facts: Facts) -> list[str]:
    """In words, the entries of `expect` that do not hold; for a fact that does not exist, the most similar name.

    `blocks_num.x` is the first number of `blocks_num`.
    """
    known, said = facts.flat(), []
    for fact, expected in expect.items():
        name, _, axis = fact.rpartition(".")
        values = known.get(name)
        if fact in known:
            found = known[fact]
        elif axis in AXES and isinstance(values, list) and AXES[axis] < len(values):
            found = values[AXES[axis]]
        else:
            nearest = difflib.get_close_matches(fact, known, 1, 0.0)
            why = f"but there is no such fact; the nearest is {nearest[0]}" if nearest else "found None"
            said.append(f"{fact}: expected {expected}, {why}")
            continue
        if found != expected:
            said.append(f"{fact}: expected {expected}, found {found}")
    return said
