"""Counts of lines, of which those that are argued unreachable do not count; mutants that are argued equivalent."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fattn_probe.base.errors import InputError
from fattn_probe.lab.detect import counts, show
from fattn_probe.lab.detect.counts import (
    CountedLine,
    LineCoverage,
    Share,
    Unreachable,
    equivalents,
    places,
    unreachable,
)
from fattn_probe.lab.detect.measure import Measured, by_suite
from fattn_probe.lab.detect.mutate import NOT_INFECTED, Mutated
from fattn_probe.lab.detect.schema import switched
from fattn_probe.lab.detect.show import document, fate_of, render_mutation
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from fattn_probe.llama.source.features import CUDA
from tests.lab.detect.test_mutate import KILLED, MUTANT
from tests.stand_in import StandIn

SOURCE = """\
    if (amd(cc) && x) {
        return 1;
    }
    f();
    if (amd(cc) && x) {
"""


@dataclass(frozen=True)
class OneTree(StandIn):
    """A tree as far as its folder."""

    root: Path


@pytest.fixture
def tree(tmp_path):
    (tmp_path / CUDA).mkdir(parents=True)
    (tmp_path / CUDA / "a.cuh").write_text(SOURCE)
    return OneTree(tmp_path)


def entry(*lines, **more):
    return Unreachable(because="AMD's GPUs only, for a test.", file="a.cuh", lines=list(lines), **more)


TILE = "flash_attn_tile<64,64,2,1,false>"
OTHER = "flash_attn_tile<64,64,2,1,true>"


def tile(*counted, function=TILE):
    """(number, count) or (number, count, outcomes) of a line of a.cuh in a function."""
    return CountedLine("a.cuh", function, *counted)


def other(*counted):
    return tile(*counted, function=OTHER)


def coverage(*counted, target="sim:h200", known=None):
    found = LineCoverage(unreachable=known or {})
    found.add(counted, target)
    return found


def test_lines_are_meant_by_their_text_and_range(tree):
    def numbers(*known):
        return sorted(line for _, line in places(tree, known))

    assert numbers(entry("if (amd(cc) && x) {")) == [1, 5]
    assert numbers(entry("if (amd(cc) && x) {", until="}")) == [1]
    assert numbers(entry("if (amd(cc) && x) {", after="f();")) == [5]
    assert numbers(entry("/./", after="/^return/", until="/amd/")) == [3, 4]
    assert numbers(entry("/./", after="g();")) == []
    assert numbers(entry("/amd/", "return 1;")) == [1, 2, 5]
    assert numbers(entry("amd")) == []
    assert numbers(Unreachable(because="in no file of this release", file="b.cuh", lines=["f();"])) == []


def test_only_what_was_executed_of_them_counts(tree):
    known = places(tree, [entry("/amd/", "return 1;", until="}")])
    lines = tile(1, 9, (0, 9)), tile(2, 0), tile(4, 9), tile(5, 9, (0, 9))
    found = coverage(*lines, known=known)
    assert found.lines("a.cuh") == Share(3, 3)
    assert found.branches("a.cuh") == Share(2, 3)
    assert (found.gaps("a.cuh"), found.one_sided("a.cuh"), found.left_out("a.cuh")) == ([], [5], [1, 2])
    assert counts.refuted(found) == []
    plain = coverage(*lines)
    assert (plain.lines("a.cuh"), plain.branches("a.cuh")) == (Share(3, 4), Share(2, 4))
    (suite,) = document([Measured("quick", found, ("sim:h200",), 1, ())])["suites"]
    assert suite["files"][0]["unreachable"] == [
        [1, "AMD's GPUs only, for a test."],
        [2, "AMD's GPUs only, for a test."],
    ]
    kinds = [line["kind"] for line in show.annotated(tree.root / CUDA / "a.cuh", "a.cuh", found)]
    assert kinds == ["argued", "argued", "", "", "partly"]


def test_an_argument_that_a_run_refutes_is_named(tree):
    found = coverage(tile(1, 9, (1, 8)), tile(5, 9, (0, 9)), known=places(tree, [entry("/amd/")]))
    assert counts.refuted(found) == [("a.cuh", 1)]
    said = "\n".join(show.summary(Measured("quick", found, ("sim:h200",), 1, ())))
    assert "a.cuh:1 was executed, but unreachable.yaml says that it cannot be" in said
    assert said.startswith("quick: 1 case on sim:h200\n") and "left out: 1 line" in said


@pytest.mark.network
def test_every_entry_means_a_line_of_the_default_release():
    tree = resolve(DEFAULT_SOURCE)
    for item in unreachable():
        assert places(tree, [item]), item


def test_what_only_nvidia_gpus_do_not_reach_is_reachable_with_an_amd_gpu():
    """`coverage` of a suite on an RX 7900 XTX left out 166 lines "for AMD GPUs only", and had executed some."""
    assert any("AMD GPUs" in item.because for item in unreachable())
    assert not any("AMD GPUs" in item.because for item in unreachable(amd=True))
    assert all(item in unreachable() for item in unreachable(amd=True))
    assert any("supports_op()" in item.because for item in unreachable(amd=True))


WHY = "it is the same for every input"
ONE = counts.Equivalent(because=WHY, file="fattn-vec.cuh", before="a < b", after="a <= b")


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
        counts.Equivalent(because=WHY, file="fattn.cu")
    path = tmp_path / "list.yaml"
    path.write_text(yaml.safe_dump([{"because": WHY, "file": "fattn.cu", "before": "x", "function": "/f$/"}]))
    (item,) = equivalents(path, amd=True)
    assert counts.argument(replace(MUTANT, file="fattn.cu", before="x", function="f"), [item]) == WHY
    path.write_text(f"{path.read_text()}  nvidia: true\n")
    assert (len(equivalents(path)), equivalents(path, amd=True)) == (1, ())


def test_equivalent_mutants_count_neither_as_killed_nor_as_missed_unless_one_is_killed():
    survivor = replace(KILLED, by="", case="", on="")
    assert [fate_of(item, [ONE]) for item in (KILLED, survivor)] == ["killed", "equivalent"]
    assert fate_of(survivor, []) == "survived"
    rows = [("x", "killed"), ("x", "survived"), ("x", "equivalent"), ("x", "not reached"), ("x", "not reached")]
    assert show.table("file", rows).rows == (
        ("x", "1", "1", "0", "2", "1", "50 %", "25 %"),
        ("all", "1", "1", "0", "2", "1", "50 %", "25 %"),
    )


def test_a_survivor_that_infects_no_case_is_told_from_others_and_has_the_cases_that_execute_it():
    survivor = replace(KILLED, by="", case="", on="", said=NOT_INFECTED, cases=5)
    found = Mutated(("sim:h200",), 3, (), None, (survivor, replace(survivor, said="", cases=1)), 9, 0)
    lines = [str(part) for part in render_mutation(found).renderables][-2:]
    assert lines == [f"survived 5 cases: {MUTANT} (changes no value in any of them)", f"survived 1 case: {MUTANT}"]
    # The builds hold about twice the sample, which is not how many mutants the release has.
    survivor = replace(KILLED, by="", case="", on="", cases=5)
    ran = {survivor.mutant.digest: tuple(f"case-{number} on sim:h200" for number in range(5))}
    found = Mutated(("sim:h200",), 5, (), None, (survivor,), 8, 0, ran)
    first, *_, last = map(str, render_mutation(found).renderables)
    assert first == "1 mutant, 5 cases on sim:h200\n"
    assert last == "  executed by case-0 on sim:h200, case-1 on sim:h200, case-2 on sim:h200 and 2 more"
    assert [item["ran"] for item in show.mutation_document(found)["mutants"]] == [list(ran[survivor.mutant.digest])]
    assert show.mutation_document(found)["counts"] == {"survived": 1}
    assert show.mutation_document(replace(found, ran={}))["mutants"][0]["ran"] is None  # a verdict of an earlier call


@pytest.mark.network
def test_every_entry_means_a_mutant_of_the_default_release():
    mutants = switched(resolve(DEFAULT_SOURCE), (), frozenset()).mutants
    assert [item for item in equivalents() if not any(map(item.means, mutants))] == []


def test_instances_add_up_in_a_line_and_in_the_outcomes_of_its_branch():
    found = coverage(tile(5, 0), other(5, 3), tile(6, 0))
    assert found.lines("a.cuh") == Share(1, 2)
    assert found.files["a.cuh"][5].count == 3
    found = coverage(tile(5, 4, (4, 0)), other(5, 4, (0, 4)))
    assert found.files["a.cuh"][5].branches == (4, 4)
    assert found.branches("a.cuh") == Share(2, 2)
    assert found.one_sided("a.cuh") == []


@pytest.mark.parametrize(
    ("one", "other", "kept"),
    [
        ((9, (9, 9)), (4, (0, 4, 0, 4)), (0, 4, 0, 4)),  # one instance knows a condition at compile time
        ((9, (9, 0)), (0, (0, 0, 0, 0)), (9, 0)),  # with `if (flag && ...)`, the idle one inlines nothing behind it
    ],
)
def test_the_outcomes_of_a_branch_are_those_of_one_kind_of_instance(one, other, kept):
    counted = [tile(5, *counts, function=name) for name, counts in ((TILE, one), (OTHER, other))]
    for found in (coverage(*counted), coverage(*reversed(counted))):
        assert found.files["a.cuh"][5].branches == kept
        assert found.one_sided("a.cuh") == [5]


def test_a_range_that_was_never_executed_goes_over_lines_without_code():
    counted = [tile(number, count) for number, count in ((1, 1), (3, 0), (7, 0), (8, 2), (9, 0))]
    assert coverage(*counted).gaps("a.cuh") == [(3, 7), (9, 9)]


def test_instances_count_once_for_each_target_and_are_shown_by_kernel_and_gpu():
    found = coverage(tile(5, 1), other(5, 0))
    found.add([tile(5, 0)], "sim:t4")
    assert found.of_kernel("flash_attn_tile") == (Share(1, 3), Share(1, 3))
    assert found.of_kernel("flash_attn_tile", "sim:h200") == (Share(1, 2), Share(1, 2))
    assert found.of_kernel("flash_attn_tile", "sim:t4") == (Share(0, 1), Share(0, 1))
    assert found.of_kernel("flash_attn_ext_vec") == (Share(0, 0), Share(0, 0))
    found = coverage(tile(5, 1), other(5, 0), tile(6, 0))
    found.add([tile(5, 1)], "sim:t4")
    assert list(show.instance_rows([Measured("quick", found, ("sim:h200", "sim:t4"), 2, ())])) == [
        ("flash_attn_tile", "sim:h200", "1 of 2", "33.3 % of 3"),
        ("flash_attn_tile", "sim:t4", "1 of 1", "100 % of 1"),
    ]


def test_a_file_of_which_no_instance_was_compiled_is_named():
    of_the_host = CountedLine("fattn-mma-f16.cuh", "ggml_cuda_fattn_mma_get_config", 3, 0)
    found = coverage(CountedLine("fattn-tile.cuh", TILE, 5, 1), of_the_host)
    found.headers = frozenset({"fattn-mma-f16.cuh", "fattn-tile.cuh", "fattn-vec.cuh"})
    measured = [Measured("quick", found, ("sim:h200",), 1, ())]
    assert show.files_of(measured) == ["fattn-mma-f16.cuh", "fattn-tile.cuh", "fattn-vec.cuh"]
    for file in ("fattn-mma-f16.cuh", "fattn-vec.cuh"):
        assert list(show.cells_of(measured, file)) == ["no instance compiled", ""]
    assert list(show.cells_of(measured, "fattn-tile.cuh")) == ["100 % of 1", "none"]
    (suite,) = document(measured)["suites"]
    assert suite["not_compiled"] == ["fattn-mma-f16.cuh", "fattn-vec.cuh"]


def test_runs_of_a_suite_add_up_and_survive_a_file(tmp_path):
    first = coverage(tile(5, 0, (0, 0)), tile(6, 1))
    second = coverage(tile(5, 2, (2, 0)), other(5, 0), target="sim:t4")
    runs = [
        Measured("quick", first, ("sim:h200",), 2, ()),
        Measured("nightly", LineCoverage(), (), 0, ()),
        Measured("quick", second, ("sim:t4",), 3, ("x: lost",)),
    ]
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(document(runs)))
    quick, nightly = by_suite(show.read(path))
    assert (quick.targets, quick.cases, quick.lost) == (("sim:h200", "sim:t4"), 5, ("x: lost",))
    assert quick.coverage.files["a.cuh"] == {5: counts.SourceLine(2, (2, 0)), 6: counts.SourceLine(1)}
    assert quick.coverage.of_kernel("flash_attn_tile")[0] == Share(2, 3)
    assert nightly.suite == "nightly"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"suites": [{}]}', '{"suites": [{"files": [{"file": "a", "counts": [1]}]}]}']
)
def test_a_file_that_is_no_coverage_is_named(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=r"x\.json: not what `fattn-probe coverage --json` prints"):
        show.read(tmp_path / "x.json")
    with pytest.raises(InputError, match=r"y\.json: cannot read the coverage: (?!.*prints)"):
        show.read(tmp_path / "y.json")


ITEMS = st.builds(
    CountedLine,
    st.sampled_from(["a.cuh", "b.cuh"]),
    st.sampled_from([TILE, OTHER]),
    st.integers(1, 9),
    st.integers(0, 3),
    st.lists(st.integers(0, 2), max_size=4).map(tuple),
)


@given(st.lists(ITEMS), st.randoms())
def test_the_order_of_instances_changes_nothing(items, random):
    other = items.copy()
    random.shuffle(other)
    assert coverage(*items).files == coverage(*other).files


@given(st.lists(ITEMS))
def test_gaps_and_executed_lines_are_all_lines(items):
    found = coverage(*items)
    for file, lines in found.files.items():
        inside = {number for first, last in found.gaps(file) for number in lines if first <= number <= last}
        assert inside == {number for number, line in lines.items() if not line.count}
