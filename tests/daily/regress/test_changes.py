import pytest

from fattn_probe.daily.regress.changes import ChangeKind, changes
from fattn_probe.daily.regress.records import Result


def launch(kernel="f<1>", grid=8):
    return f'{{"order":0,"kernel":"{kernel}","grid":[{grid},1,1],"block":[32,4,1],"shared":0}}'


GRIDS = {8: "assumed", 9: "measured"}


def result(status="pass", output="00", launches="", digest="d", **rest):
    return Result("c", digest, status, output=output, launches=launches or launch(), **rest)


def kinds(before, after):
    return [change.kind for change in changes({"c": before}, {"c": after})]


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


def test_alarms():
    (alarm,) = changes({"c": result()}, {"c": result("unsupported", output=None)})
    assert alarm.alarm
    (look,) = changes({"c": result()}, {"c": result(output="11")})
    assert not look.alarm


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
