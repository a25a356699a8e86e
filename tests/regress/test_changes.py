import pytest

from fattn_probe.regress.changes import Kind, changes
from fattn_probe.regress.records import Result


def launch(kernel="f<1>", grid=8):
    return f'{{"order":0,"kernel":"{kernel}","grid":[{grid},1,1],"block":[32,4,1],"shared":0}}'


def result(status="pass", output="00", launches="", digest="d", **rest):
    return Result("c", digest, status, output=output, launches=launches or launch(), **rest)


def kinds(before, after):
    return [change.kind for change in changes({"c": before}, {"c": after})]


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (result(), result(), []),
        (result(), result("fail"), [Kind.NEW_FAILURE]),
        (result("fail"), result(), [Kind.FIXED]),
        (result("fail"), result("fail", reason="still"), []),
        (result(), result("unsupported", output=None), [Kind.SUPPORT_LOST]),
        (result("unsupported", output=None), result(), [Kind.SUPPORT_GAINED]),
        (result("unsupported", output=None), result("fail"), [Kind.NEW_FAILURE]),
        (result(), result(output="11"), [Kind.BITS]),
        (result(), result(launches=launch("f<2>")), [Kind.KERNEL]),
        (result(), result(launches=launch(grid=9)), [Kind.LAUNCH]),
        (result(), result(output="11", launches=launch("g")), [Kind.KERNEL, Kind.BITS]),
        (result(), result("lost", output=None, failure="time-out"), [Kind.LOST]),
        (result("lost", output=None), result(), []),
        (result("lost", output=None), result("fail"), [Kind.NEW_FAILURE]),
        (result(digest="a"), result(digest="b"), [Kind.NEW]),
        (result(digest="a"), result("fail", digest="b"), [Kind.NEW, Kind.NEW_FAILURE]),
    ],
)
def test_kinds_of_change(before, after, found):
    assert kinds(before, after) == found


def test_alarms():
    (alarm,) = changes({"c": result()}, {"c": result("unsupported", output=None)})
    assert alarm.alarm
    (look,) = changes({"c": result()}, {"c": result(output="11")})
    assert not look.alarm


def test_a_case_that_was_not_run_is_reported():
    (change,) = changes({"c": result()}, {})
    assert (change.case, change.kind, change.words) == ("c", Kind.NOT_RUN, "was pass")


def test_a_new_case_alarms_only_if_it_fails():
    assert [change.kind for change in changes({}, {"c": result()})] == [Kind.NEW]
    assert [change.kind for change in changes({}, {"c": result("fail")})] == [Kind.NEW_FAILURE]


def test_words_describe_the_change_before_and_after():
    (change,) = changes({"c": result()}, {"c": result(launches=launch("f<2>"))})
    assert change.words == "f<1> became f<2>"
    (change,) = changes({"c": result()}, {"c": result(launches=launch(grid=9))})
    assert change.words == "f: grid 8x1x1 of 32x4x1, 0 B became f: grid 9x1x1 of 32x4x1, 0 B"


def test_a_case_that_ends_before_its_output_has_no_second_line():
    """An out-of-bounds access ends the run: that its kernels were not launched is no change of its own."""
    (change,) = changes({"c": result()}, {"c": Result("c", "d", "fail", "out-of-bounds: ...")})
    assert change.kind is Kind.NEW_FAILURE
    (change,) = changes({"c": Result("c", "d", "fail", "out-of-bounds: ...")}, {"c": result()})
    assert change.kind is Kind.FIXED


def test_only_the_launches_that_changed_are_named():
    (change,) = changes(
        {"c": result(launches=f"{launch('f<1>')}\n{launch('g')}")},
        {"c": result(launches=f"{launch('f<1>')}\n{launch('g', grid=3)}")},
    )
    assert change.words == "g: grid 8x1x1 of 32x4x1, 0 B became g: grid 3x1x1 of 32x4x1, 0 B"


def test_other_bits_say_how_many_are_still_the_models():
    before, after = result(metrics={"equal_bits": 1.0}), result(output="11", metrics={"equal_bits": 0.28})
    (change,) = changes({"c": before}, {"c": after})
    assert change.words.endswith("28 % of the elements equal the rounding model in every bit, before 100 %")
