"""Counts of instances, merged to counts of source lines."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fattn_probe.base.errors import InputError
from fattn_probe.lab.detect.counts import CountedLine, LineCoverage, Share, SourceLine
from fattn_probe.lab.detect.measure import Measured, by_suite
from fattn_probe.lab.detect.show import cells_of, document, files_of, instance_rows, read

TILE = "flash_attn_tile<64,64,2,1,false>"
OTHER = "flash_attn_tile<64,64,2,1,true>"


def coverage(*counted, target="sim:h200"):
    found = LineCoverage()
    found.add(counted, target)
    return found


def test_instances_add_up_in_a_line_and_in_the_outcomes_of_its_branch():
    found = coverage(
        CountedLine("a.cuh", TILE, 5, 0), CountedLine("a.cuh", OTHER, 5, 3), CountedLine("a.cuh", TILE, 6, 0)
    )
    assert found.lines("a.cuh") == Share(1, 2)
    assert found.files["a.cuh"][5].count == 3
    found = coverage(CountedLine("a.cuh", TILE, 5, 4, (4, 0)), CountedLine("a.cuh", OTHER, 5, 4, (0, 4)))
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
    counted = [CountedLine("a.cuh", name, 5, *counts) for name, counts in ((TILE, one), (OTHER, other))]
    for found in (coverage(*counted), coverage(*reversed(counted))):
        assert found.files["a.cuh"][5].branches == kept
        assert found.one_sided("a.cuh") == [5]


def test_a_range_that_was_never_executed_goes_over_lines_without_code():
    counted = [CountedLine("a.cuh", TILE, line, count) for line, count in ((1, 1), (3, 0), (7, 0), (8, 2), (9, 0))]
    assert coverage(*counted).gaps("a.cuh") == [(3, 7), (9, 9)]


def test_instances_count_once_for_each_target():
    found = coverage(CountedLine("a.cuh", TILE, 5, 1), CountedLine("a.cuh", OTHER, 5, 0))
    found.add([CountedLine("a.cuh", TILE, 5, 0)], "sim:t4")
    assert found.of_kernel("flash_attn_tile") == (Share(1, 3), Share(1, 3))
    assert found.of_kernel("flash_attn_tile", "sim:h200") == (Share(1, 2), Share(1, 2))
    assert found.of_kernel("flash_attn_tile", "sim:t4") == (Share(0, 1), Share(0, 1))
    assert found.of_kernel("flash_attn_ext_vec") == (Share(0, 0), Share(0, 0))


def test_instances_are_shown_by_kernel_and_gpu():
    found = coverage(
        CountedLine("a.cuh", TILE, 5, 1), CountedLine("a.cuh", OTHER, 5, 0), CountedLine("a.cuh", TILE, 6, 0)
    )
    found.add([CountedLine("a.cuh", TILE, 5, 1)], "sim:t4")
    measured = Measured("quick", found, ("sim:h200", "sim:t4"), 2, ())
    assert list(instance_rows([measured])) == [
        ("flash_attn_tile", "sim:h200", "1 of 2", "33.3 % of 3"),
        ("flash_attn_tile", "sim:t4", "1 of 1", "100 % of 1"),
    ]


def test_a_file_of_which_no_instance_was_compiled_is_named():
    of_the_host = CountedLine("fattn-mma-f16.cuh", "ggml_cuda_fattn_mma_get_config", 3, 0)
    found = coverage(CountedLine("fattn-tile.cuh", TILE, 5, 1), of_the_host)
    found.headers = frozenset({"fattn-mma-f16.cuh", "fattn-tile.cuh", "fattn-vec.cuh"})
    measured = [Measured("quick", found, ("sim:h200",), 1, ())]
    assert files_of(measured) == ["fattn-mma-f16.cuh", "fattn-tile.cuh", "fattn-vec.cuh"]
    for file in ("fattn-mma-f16.cuh", "fattn-vec.cuh"):
        assert list(cells_of(measured, file)) == ["no instance compiled", ""]
    assert list(cells_of(measured, "fattn-tile.cuh")) == ["100 % of 1", "none"]
    (suite,) = document(measured)["suites"]
    assert suite["not_compiled"] == ["fattn-mma-f16.cuh", "fattn-vec.cuh"]


def test_runs_of_a_suite_add_up_and_survive_a_file(tmp_path):
    first = coverage(CountedLine("a.cuh", TILE, 5, 0, (0, 0)), CountedLine("a.cuh", TILE, 6, 1))
    second = coverage(CountedLine("a.cuh", TILE, 5, 2, (2, 0)), CountedLine("a.cuh", OTHER, 5, 0), target="sim:t4")
    runs = [
        Measured("quick", first, ("sim:h200",), 2, ()),
        Measured("nightly", LineCoverage(), (), 0, ()),
        Measured("quick", second, ("sim:t4",), 3, ("x: lost",)),
    ]
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(document(runs)))
    quick, nightly = by_suite(read(path))
    assert (quick.targets, quick.cases, quick.lost) == (("sim:h200", "sim:t4"), 5, ("x: lost",))
    assert quick.coverage.files["a.cuh"] == {5: SourceLine(2, (2, 0)), 6: SourceLine(1)}
    assert quick.coverage.of_kernel("flash_attn_tile")[0] == Share(2, 3)
    assert nightly.suite == "nightly"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"suites": [{}]}', '{"suites": [{"files": [{"file": "a", "counts": [1]}]}]}']
)
def test_a_file_that_is_no_coverage_is_named(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=r"x\.json: not what `fattn-probe coverage --json` prints"):
        read(tmp_path / "x.json")
    with pytest.raises(InputError, match=r"y\.json: cannot read the coverage: (?!.*prints)"):
        read(tmp_path / "y.json")


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
