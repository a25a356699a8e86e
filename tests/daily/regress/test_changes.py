"""What changed between two runs, and the steps in a series of times."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fattn_probe.daily.regress.changes import ChangeKind, changes, last_step, levels
from fattn_probe.daily.regress.records import Result


def launch(kernel="f<1>", grid=8):
    return f'{{"order":0,"kernel":"{kernel}","grid":[{grid},1,1],"block":[32,4,1],"shared":0}}'


GRIDS = {8: "assumed", 9: "measured"}


def result(status="pass", output="00", launches="", digest="d", **rest):
    return Result("c", digest, status, output=output, launches=launches or launch(), **rest)


ALARMS = {ChangeKind.NEW_FAILURE, ChangeKind.SUPPORT_LOST}


def kinds(before, after):
    found = changes({"c": before}, {"c": after})
    assert [change.alarm for change in found] == [change.kind in ALARMS for change in found]
    return [change.kind for change in found]


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (result(), result(), []),
        (result(), result("fail"), [ChangeKind.NEW_FAILURE]),
        (result("fail"), result(), [ChangeKind.FIXED]),
        (result("fail"), result("fail", reason="still"), []),
        (result(), result("unsupported", output=None), [ChangeKind.SUPPORT_LOST]),
        (result("unsupported", output=None), result(), [ChangeKind.SUPPORT_GAINED]),
        (result("unsupported", output=None), result("fail"), [ChangeKind.NEW_FAILURE]),
        (result(), result(output="11"), [ChangeKind.BITS]),
        (result(), result(launches=launch("f<2>")), [ChangeKind.KERNEL]),
        (result(), result(launches=launch(grid=9)), [ChangeKind.LAUNCH]),
        (result(), result(output="11", launches=launch("g")), [ChangeKind.KERNEL, ChangeKind.BITS]),
        (result(), result("lost", output=None, failure="time-out"), [ChangeKind.LOST]),
        (result("lost", output=None), result(), []),
        (result("lost", output=None), result("fail"), [ChangeKind.NEW_FAILURE]),
        (result(digest="a"), result(digest="b"), [ChangeKind.NEW]),
        (result(digest="a"), result("fail", digest="b"), [ChangeKind.NEW, ChangeKind.NEW_FAILURE]),
    ],
)
def test_kinds_of_change(before, after, found):
    assert kinds(before, after) == found


@pytest.mark.parametrize(("kernel", "mark"), [("flash_attn_ext_vec", " (assumed)"), ("dequantize", "")])
def test_a_changed_grid_says_where_its_occupancy_is_from(kernel, mark):
    """The origin alone is no change."""
    before, after = (
        launch(f"{kernel}<1>", grid).replace("}", f',"origin":"{origin}"}}') for grid, origin in GRIDS.items()
    )
    (change,) = changes({"c": result(launches=before)}, {"c": result(launches=after)})
    sizes = [f"{kernel}: grid {grid}x1x1 of 32x4x1, 0 B" for grid in GRIDS]
    assert change.words == f"{sizes[0]}{mark} became {sizes[1]}"
    assert kinds(result(launches=before), result(launches=before.replace("assumed", "measured"))) == []


def test_cases_that_were_not_run_or_are_new():
    (change,) = changes({"c": result()}, {})
    assert (change.case, change.kind, change.words) == ("c", ChangeKind.NOT_RUN, "was pass")
    assert [change.kind for change in changes({}, {"c": result()})] == [ChangeKind.NEW]
    assert [change.kind for change in changes({}, {"c": result("fail")})] == [ChangeKind.NEW_FAILURE]


def test_words_describe_the_change_before_and_after():
    (change,) = changes({"c": result()}, {"c": result(launches=launch("f<2>"))})
    assert change.words == "f<1> became f<2>"
    (change,) = changes({"c": result()}, {"c": result(launches=launch(grid=9))})
    assert change.words == "f: grid 8x1x1 of 32x4x1, 0 B became f: grid 9x1x1 of 32x4x1, 0 B"
    (change,) = changes(
        {"c": result(launches=f"{launch('f<1>')}\n{launch('g')}")},
        {"c": result(launches=f"{launch('f<1>')}\n{launch('g', grid=3)}")},
    )
    assert change.words == "g: grid 8x1x1 of 32x4x1, 0 B became g: grid 3x1x1 of 32x4x1, 0 B"
    before, after = result(metrics={"equal_bits": 1.0}), result(output="11", metrics={"equal_bits": 0.28})
    (change,) = changes({"c": before}, {"c": after})
    assert change.words.endswith("28 % of the elements equal the rounding model in every bit, before 100 %")


def test_a_case_that_ends_before_its_output_has_no_second_line():
    """An out-of-bounds access ends the run: that its kernels were not launched is no change of its own."""
    (change,) = changes({"c": result()}, {"c": Result("c", "d", "fail", "out-of-bounds: ...")})
    assert change.kind is ChangeKind.NEW_FAILURE
    (change,) = changes({"c": Result("c", "d", "fail", "out-of-bounds: ...")}, {"c": result()})
    assert change.kind is ChangeKind.FIXED


def series(*pieces, noise=0.005, seed=0):
    rng = np.random.default_rng(seed)
    parts = [value * (1 + noise * rng.standard_normal(count)) for value, count in pieces]
    return np.concatenate(parts).tolist()


def test_a_step_is_found_where_it_is_and_the_last_one_has_both_levels():
    found = levels(series((1.0, 20), (1.1, 10)))
    assert [(level.start, level.stop) for level in found] == [(0, 20), (20, 30)]
    before, after = last_step(series((1.0, 20), (1.1, 5)))
    assert [found[1].value, after.value / before.value] == pytest.approx([1.1, 1.1], rel=0.01)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 1.0], [1.0] * 30, series((1.0, 30)), [1.0, 2.0]])
def test_no_step(values):
    assert last_step(values) is None


def test_a_slow_run_and_noise_are_no_step():
    values = series((1.0, 30))
    values[12] = 1.5
    assert last_step(values) is None
    values[-1] = 1.5
    assert last_step(values) is None
    # Of 300 series of nights without a change, at 1 % noise.
    alarms = sum(last_step(series((1.0, 40), noise=0.01, seed=seed)) is not None for seed in range(300))
    assert alarms <= 3


@settings(max_examples=30)
@given(st.integers(8, 25), st.integers(4, 15), st.floats(1.06, 3.0), st.integers(0, 10**6))
@example(11, 6, 3.0, 510510)  # the slower level, as noisy as it is slow, falls in two
def test_any_step_well_above_the_noise_is_seen(first, second, factor, seed):
    step = last_step(series((1.0, first), (factor, second), noise=0.002, seed=seed))
    assert step is not None
    assert step[0].stop == first
