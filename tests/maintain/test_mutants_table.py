"""The table of what several suites kill of the same mutants."""

from fattn_probe.lab.detect.equivalents import Equivalent
from fattn_probe.lab.detect.mutants import Mutant
from fattn_probe.lab.detect.verdicts import MutantVerdict
from maintain.mutants_table import Column, counted, page

MUTANTS = [
    Mutant(number, f"fattn-{'vec' if number < 4 else 'tile'}.cuh", number, "relation", "a", "b") for number in range(6)
]
BY_DIGEST = {mutant.digest: mutant for mutant in MUTANTS}


def column(name, *fates):
    pairs = [(item, fate) for item, fate in zip(MUTANTS, fates, strict=False) if fate]
    found = [
        MutantVerdict(item, "", "verdict" if fate == "killed" else "", "", "", 1, 0.0, fate == "another kernel")
        for item, fate in pairs
    ]
    return Column.of(name, found, history=name != "upstream")


def test_a_row_for_each_file_and_all():
    quick = column("quick", "killed", "survived", "killed", "killed", "survived", "killed")
    upstream = column("upstream", "survived", "survived", "survived", "killed", "survived", None)
    lines = page(BY_DIGEST, [quick, upstream]).splitlines()
    assert lines[0] == "| mutants of | number | quick | upstream |"
    assert lines[2] == "| `fattn-tile.cuh` | 2 | 50.0 % (1) | 0.0 % (0), 1 open |"
    assert lines[3] == "| `fattn-vec.cuh` | 4 | 75.0 % (3) | 25.0 % (1) |"
    assert lines[4] == "| all | 6 | 66.7 % (4) | 16.7 % (1), 1 open |"


def test_the_held_out_half_is_that_of_odd_digests():
    odd = [item for item in MUTANTS if int(item.digest, 16) % 2]
    line = page(BY_DIGEST, [column("quick", *["killed"] * 6)]).splitlines()[5]
    assert line == f"| held out | {len(odd)} | 100.0 % ({len(odd)}) |"


def test_a_history_shows_other_kernels_to_a_suite_that_has_one():
    fates = ["killed", "another kernel", "survived", "killed", "another kernel", "survived"]
    lines = page(BY_DIGEST, [column("quick", *fates), column("upstream", *fates)]).splitlines()
    assert lines[4] == "| all | 6 | 33.3 % (2) | 33.3 % (2) |"
    assert lines[6] == "| all, with a history | 6 | 66.7 % (4) | 33.3 % (2) |"


def test_equivalent_mutants_do_not_count_unless_one_is_killed():
    known = [Equivalent(because="nothing can tell b from a in any case", file="fattn-tile.cuh", after="b")]
    quick = column("quick", *["survived"] * 5, "killed")
    assert {item.id for item in counted(BY_DIGEST, [quick], known).values()} == {0, 1, 2, 3, 5}
    assert list(counted(BY_DIGEST, [quick], (), sample=2)) == sorted(BY_DIGEST)[:2]
