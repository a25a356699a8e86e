"""Tables in terminals of all widths and in a pipe, and numbers in words."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from fattn_probe.base.figures import clock, factor, first_of, minute, times
from fattn_probe.base.tables import Table, labelled, listed
from tests.made import shown

KERNEL = "flash_attn_ext_f16<64,64,8,8,false,false,false>"
RUN = Table(
    ("case", "on", "kernel", "grid", "blocks\nper SM"),
    (("gqa", "sim:h200", KERNEL, "8x1x1", "2"), ("", "", "flash_attn_stream_k_fixup<64,8,8>", "2x8x8", "16")),
    frozenset({"blocks\nper SM"}),
    heading=("case", "on"),
)


def letters(text):
    return re.sub(r"[\s─]", "", text)


def test_a_table_stands_side_by_side_where_there_is_room_and_with_narrower_gaps_first():
    lines = [line.rstrip() for line in shown(RUN, width=100).splitlines()]
    assert lines[1].split() == ["case", "on", "kernel", "grid", "per", "SM"]
    assert lines[3].split() == ["gqa", "sim:h200", KERNEL, "8x1x1", "2"]
    assert lines[3].index("gqa    sim:h200   flash") == 0
    assert lines[4].endswith("16")
    assert shown(RUN, width=80).splitlines()[3].startswith("gqa   sim:h200  flash")
    assert shown(RUN, width=75).splitlines()[3].startswith("gqa  sim:h200 flash")


def test_a_record_that_does_not_fit_is_a_heading_and_its_words_by_name_and_its_kernel_is_folded():
    assert shown(RUN, width=60) == (
        "gqa  sim:h200\n"
        f"  kernel {KERNEL}\n"
        "  grid 8x1x1   blocks per SM 2\n"
        "  kernel flash_attn_stream_k_fixup<64,8,8>   grid 2x8x8\n"
        "  blocks per SM 16\n"
    )
    assert shown(RUN, width=36).splitlines()[:4] == [
        "gqa  sim:h200",
        "  kernel flash_attn_ext_f16",
        "    <64,64,8,8,false,false,false>",
        "  grid 8x1x1   blocks per SM 2",
    ]


def test_only_prose_is_folded():
    words = "the output is right, and not the same: caches and golden files notice"
    table = Table(("case", "why"), (("gqa", words),), prose=frozenset({"why"}))
    assert max(map(len, shown(table, width=40).splitlines())) <= 40
    assert shown(table, width=40).splitlines()[2].startswith("gqa    the output is right")
    assert shown(table, width=25).splitlines() == [
        "gqa",
        "  why the output is",
        "    right, and not the",
        "    same: caches and",
        "    golden files notice",
    ]


def test_lines_of_a_cell_are_named_by_those_of_its_heading():
    table = Table(("case\non", "verdict", "NMSE\nallowed"), (("gqa\nsim:h200", "pass", "1.29e-07\n1e-05"),))
    assert shown(table, width=22) == "gqa, sim:h200\n  verdict pass\n  NMSE 1.29e-07\n  allowed 1e-05\n"
    stopped = replace(table, rows=(("k-stride\nsim:h200", "fail", "-"),))
    assert shown(stopped, width=22) == "k-stride, sim:h200\n  verdict fail\n", "no `NMSE allowed -`"


words = st.text("ab<,>1 \n", max_size=30).map(str.strip)


@st.composite
def tables(draw):
    columns = tuple(f"c{place}" for place in range(draw(st.integers(1, 5))))
    rows = draw(st.lists(st.tuples(*(words for _ in columns)), max_size=4))
    chosen = st.frozensets(st.sampled_from(columns))
    return Table(columns, tuple(rows), draw(chosen), draw(chosen), spaced=draw(st.booleans()))


@given(tables(), st.integers(12, 130))
def test_nothing_is_cut_at_any_width_and_every_letter_is_there(table, width):
    text = shown(table, width=width)
    assert all(len(line) <= width for line in text.splitlines())
    stacked = letters(text).replace(",", "")
    for row in table.rows:
        for word in row:
            for line in word.splitlines():
                if len(line) < width // 3:
                    assert all(part.replace(",", "") in stacked for part in line.split() if len(part) < 8)
    found = letters(shown(table, width=width))
    wanted = "".join(letters(str(word)) for row in table.rows for word in row)
    for letter in "ab<>1":
        assert found.count(letter) >= wanted.count(letter)


def test_words_are_not_markup_and_labels_and_lists_keep_them():
    assert "[red]no[/red]" in shown(Table(("a",), (("[red]no[/red]",),)), width=60)
    assert shown(Table(("a", "b"), ((Text("x", "red"), "y"),)), width=60).splitlines()[2].split() == ["x", "y"]
    text = shown(labelled({"kernel": Text("word " * 30), "config": Text("x" * 100)}), width=60)
    assert letters(text) == "kernel" + "word" * 30 + "config" + "x" * 100
    assert shown(listed(["one two three"]), width=8) == "- one   \n  two   \n  three \n"


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


def test_a_long_list_is_cut_and_says_so():
    assert [first_of("abc", most) for most in (1, 2, 3)] == ["a and 2 more", "a, b and 1 more", "a, b, c"]
    assert [first_of((1, 2, 3), most, counted=False) for most in (2, 3)] == ["1, 2, ...", "1, 2, 3"]


def test_times_and_factors_in_words():
    assert minute("2026-11-22T04:40:13+00:00") == "2026-11-22 04:40"
    assert [clock(seconds) for seconds in (0.4, 62, 3723)] == ["0:00", "1:02", "1:02:03"]
    assert [times(value, 2) for value in (0.123, 18.78, 123.4, 5678)] == ["0.12", "19", "120", "5,700"]


@pytest.mark.parametrize(
    ("value", "words"), [(1.0, "1"), (1.00003, "1.00003"), (0.99998, "0.99998"), (0.5, "0.5"), (1.931234, "1.931")]
)
def test_a_factor_is_told_from_one(value, words):
    assert factor(value) == words
