import pytest

from fattn_probe.base.figures import clock, factor, minute, times


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.1327, "0.133"),
        (3.0, "3"),
        (99.96, "100"),
        (100.4, "100"),
        (1234.5, "1,230"),
        (18.78, "18.8"),
        (99960, "100,000"),
        (999_999, "1,000,000"),
        (1.234e9, "1.23e+09"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
    ],
)
def test_a_factor_has_three_digits_and_no_power_of_ten_below_a_million(value, words):
    assert times(value) == words


def test_times_of_day_and_of_a_clock():
    assert minute("2026-11-22T04:40:13+00:00") == "2026-11-22 04:40"
    assert [clock(seconds) for seconds in (0.4, 62, 3723)] == ["0:00", "1:02", "1:02:03"]


def test_a_factor_of_two_digits():
    assert [times(value, 2) for value in (0.123, 18.78, 123.4, 5678)] == ["0.12", "19", "120", "5,700"]


@pytest.mark.parametrize(
    ("value", "words"), [(1.0, "1"), (1.00003, "1.00003"), (0.99998, "0.99998"), (0.5, "0.5"), (1.931234, "1.931")]
)
def test_a_factor_is_told_from_one(value, words):
    assert factor(value) == words
