"""The line that shows what a command is doing: only on a terminal, one at a time, gone at the end."""

import io
import time

import pytest
from rich.console import Console

from fattn_probe.base import activity
from fattn_probe.base.activity import Activity

ERASED = "\x1b[2K"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(activity, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(activity, "SHOWN_AFTER", 0.0)


def console(*, terminal=True, width=200):
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None, markup=False)


def wait_for(out, words):
    for _ in range(500):
        if words in out.getvalue():
            return
        time.sleep(0.01)
    raise AssertionError(f"{words!r} not in {out.getvalue()!r}")


def test_a_step_is_shown_while_it_lasts_and_gone_at_the_end():
    notes = console()
    with Activity(notes) as shown:
        shown.step("gqa on sim:h200: reading the blocks")
        wait_for(notes.file, "gqa on sim:h200: reading the blocks, 0:00\r")
    said = notes.file.getvalue()
    assert said.endswith(f"{ERASED}\r")
    assert "\n" not in said


def test_cases_done_failures_and_the_time_left_are_shown_and_each_item_is_counted():
    shown = Activity(console(), total=120, began=time.monotonic() - 40)
    for status in ["pass"] * 9 + ["fail"]:
        shown.count(status)
    shown._first -= 36  # the first case was done after 4 s
    shown.step("gqa: computing the exact reference")
    assert shown.line == "10 of 120 cases, 1 fail, 9 pass, 0:40, about 7:20 left: gqa: computing the exact reference"
    shown = Activity(console(), total=3, words="running")
    assert list(shown.each(["ran", "lost"], str)) == ["ran", "lost"]
    assert shown.line.startswith("2 of 3 cases, 1 lost, 1 ran, 0:00")


def test_time_left_counts_what_this_run_did_and_a_second_target_starts_anew():
    shown = Activity(console(), began=time.monotonic() - 10)
    shown.count("pass", 101, 122)
    assert "101 of 122 cases, 1 pass, 0:10: " in shown.line
    shown._first -= 10
    shown.count("pass", 102, 122)
    assert "102 of 122 cases, 2 pass, 0:10, about 3:20 left" in shown.line
    shown = Activity(console(), began=time.monotonic() - 100)
    shown.count("fail", 1, 2)
    shown.count("fail", 2, 2)
    shown.count("pass", 1, 2)
    assert shown.line.startswith("1 of 2 cases, 1 pass, 0:00")


def test_a_long_command_says_at_once_in_a_pipe_what_it_begins_with():
    for terminal, said in ((True, ""), (False, "finding the cases\n")):
        Activity(notes := console(terminal=terminal), words="finding the cases").begin()
        assert notes.file.getvalue() == said


def test_a_pipe_gets_a_line_a_minute_but_not_while_another_line_is_shown(monkeypatch):
    monkeypatch.setattr(activity, "MINUTE", 0.05)
    notes = console(terminal=False)
    with Activity(notes) as shown:
        shown.step("compiling the kernels with their mutants")
        wait_for(notes.file, "\ncompiling the kernels with their mutants, 0:0")
        shown.beside(lambda item: None, bool)(True)
        said = notes.file.getvalue()
        time.sleep(0.2)
        assert notes.file.getvalue() == said
        shown.step("running")
        wait_for(notes.file, "running, 0:0")
    assert "\x1b" not in notes.file.getvalue()


@pytest.mark.parametrize(("terminal", "shown_after"), [(False, 0.0), (True, 60.0)], ids=["a pipe", "a short command"])
def test_nothing_is_shown_in_a_pipe_in_less_than_a_minute_nor_of_a_short_command(monkeypatch, terminal, shown_after):
    monkeypatch.setattr(activity, "SHOWN_AFTER", shown_after)
    notes = console(terminal=terminal)
    with Activity(notes, total=2) as shown:
        shown.step("running")
        shown.count("pass")
        time.sleep(0.05)
    assert notes.file.getvalue() == ""


def test_the_line_of_a_build_takes_its_place():
    notes = console()
    with Activity(notes) as shown:

        def report(done: int) -> None:
            notes.print(f"step {done}", end="\r")

        build = shown.beside(report, lambda done: done < 2)
        shown.step("running")
        wait_for(notes.file, "running")
        build(1)
        before = notes.file.getvalue()
        assert before.endswith(f"{ERASED}\rstep 1\r")
        time.sleep(0.1)
        assert notes.file.getvalue() == before, "not both at once"
        build(2)
        wait_for(notes.file, "step 2\r" + ERASED + "running")
        build(1)
        shown.step("the next case")
        wait_for(notes.file, ERASED + "the next case")


def test_a_note_stays_and_an_error_clears_the_line():
    notes = console()
    with pytest.raises(ValueError, match="x"), Activity(notes) as shown:
        shown.step("running")
        wait_for(notes.file, "running")
        shown.note("wrote [map].png")
        assert notes.file.getvalue().endswith(f"{ERASED}\rwrote [map].png\n")
        wait_for(notes.file, ".png\n" + ERASED + "running")
        raise ValueError("x")
    assert notes.file.getvalue().endswith(f"{ERASED}\r")


def test_a_long_line_is_cut_to_the_terminal():
    notes = console(width=20)
    with Activity(notes) as shown:
        shown.step("long " * 20)
        wait_for(notes.file, "…")
    assert "\n" not in notes.file.getvalue()
