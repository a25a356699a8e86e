"""The list of mutants argued equivalent, and how reports count them."""

from dataclasses import replace

import pytest
import yaml
from pydantic import ValidationError

from fattn_probe.lab.detect.equivalents import Equivalent, argument, read
from fattn_probe.lab.detect.mutate import NOT_INFECTED, Mutated
from fattn_probe.lab.detect.mutate_show import document, fate_of, parts, render, table
from fattn_probe.lab.detect.schema import switched
from tests.lab.detect.test_mutate import KILLED, MUTANT

WHY = "it is the same for every input"
ONE = Equivalent(because=WHY, file="fattn-vec.cuh", before="a < b", after="a <= b")


@pytest.mark.parametrize(
    ("changes", "means"),
    [
        ({}, True),
        ({"before": "/^a/"}, True),
        ({"before": "a"}, False),
        ({"kind": ["constant"]}, False),
        ({"kind": ["constant", "relation"]}, True),
        ({"function": "kernel"}, True),
        ({"function": "/^other/"}, False),
        ({"file": "fattn.cu"}, False),
        ({"after": "/ < /"}, False),
        ({"lines": [MUTANT.line, MUTANT.line]}, True),
        ({"lines": [MUTANT.line + 1, MUTANT.line + 9]}, False),
    ],
)
def test_which_mutants_an_entry_means(changes, means):
    assert ONE.model_copy(update=changes).means(MUTANT) is means


def test_an_entry_says_which_and_why(tmp_path):
    with pytest.raises(ValidationError, match="which mutants"):
        Equivalent(because=WHY, file="fattn.cu")
    path = tmp_path / "list.yaml"
    path.write_text(yaml.safe_dump([{"because": WHY, "file": "fattn.cu", "before": "x", "function": "/f$/"}]))
    (item,) = read(path)
    assert argument(replace(MUTANT, file="fattn.cu", before="x", function="f"), [item]) == WHY


def test_a_killed_mutant_is_killed_whatever_the_list_says():
    survivor = replace(KILLED, by="", case="", on="")
    assert [fate_of(item, [ONE]) for item in (KILLED, survivor)] == ["killed", "equivalent"]
    assert fate_of(survivor, []) == "survived"


def test_equivalent_mutants_count_neither_as_killed_nor_as_missed():
    rows = [("x", "killed"), ("x", "survived"), ("x", "equivalent"), ("x", "not reached"), ("x", "not reached")]
    assert table("file", rows).rows == (
        ("x", "1", "1", "0", "2", "1", "50 %", "25 %"),
        ("all", "1", "1", "0", "2", "1", "50 %", "25 %"),
    )


def test_a_report(tmp_path):
    found = Mutated(("sim:h200",), 3, (), None, (KILLED,), 9, 8)
    assert document(found)["counts"] == {"killed": 1}
    assert render(found)


def test_a_survivor_that_infects_no_case_is_told_from_others():
    survivor = replace(KILLED, by="", case="", on="", said=NOT_INFECTED, cases=5)
    found = Mutated(("sim:h200",), 3, (), None, (survivor, replace(survivor, said="", cases=1)), 9, 0)
    lines = [str(part) for part in parts(found)][-2:]
    assert lines == [f"survived 5 cases: {MUTANT} (gives no other value in any of them)", f"survived 1 case: {MUTANT}"]


def test_a_survivor_has_the_cases_that_execute_it_and_no_total_that_is_none():
    """The builds hold about twice the sample, which is not how many mutants the release has."""
    survivor = replace(KILLED, by="", case="", on="", cases=5)
    ran = {survivor.mutant.digest: tuple(f"case-{number} on sim:h200" for number in range(5))}
    found = Mutated(("sim:h200",), 5, (), None, (survivor,), 8, 0, ran)
    first, *_, last = map(str, parts(found))
    assert first == "1 mutant, 5 cases on sim:h200\n"
    assert last == "  executed by case-0 on sim:h200, case-1 on sim:h200, case-2 on sim:h200 and 2 more"
    assert [item["ran"] for item in document(found)["mutants"]] == [list(ran[survivor.mutant.digest])]
    assert document(replace(found, ran={}))["mutants"][0]["ran"] is None  # a verdict of an earlier call


@pytest.mark.network
def test_every_entry_means_a_mutant_of_the_default_release(tree):
    mutants = switched(tree, (), frozenset()).mutants
    assert [item for item in read() if not any(map(item.means, mutants))] == []
