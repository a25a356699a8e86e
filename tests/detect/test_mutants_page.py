"""The table of what several suites kill of the same mutants."""

from dataclasses import asdict

from fattn_probe.detect.mutants import Mutant
from fattn_probe.detect.mutants_page import common, page

MUTANTS = [
    Mutant(number, f"fattn-{'vec' if number < 4 else 'tile'}.cuh", number, "relation", "a", "b") for number in range(6)
]


def report(*fates):
    return {"mutants": [{"mutant": asdict(item), "fate": fate} for item, fate in zip(MUTANTS, fates, strict=False)]}


def test_only_mutants_that_every_report_has_and_none_calls_equivalent_count():
    quick = report("killed", "survived", "equivalent", "killed", "not reached", "killed")
    upstream = report("survived", "survived", "survived", "killed", "not reached")
    assert {item.id for item in common([quick, upstream]).values()} == {0, 1, 3, 4}
    lines = page({"quick": quick, "upstream": upstream}).splitlines()
    assert lines[0] == "| mutants of | number | quick | upstream |"
    assert lines[2] == "| `fattn-tile.cuh` | 1 | 0.0 % (0) | 0.0 % (0) |"
    assert lines[3] == "| `fattn-vec.cuh` | 3 | 66.7 % (2) | 33.3 % (1) |"
    assert lines[4] == "| all | 4 | 50.0 % (2) | 25.0 % (1) |"


def test_the_held_out_half_is_that_of_odd_digests():
    odd = [item for item in MUTANTS if int(item.digest, 16) % 2]
    line = page({"quick": report(*["killed"] * 6)}).splitlines()[-1]
    assert line == f"| held out | {len(odd)} | 100.0 % ({len(odd)}) |"
