"""The guided tour: each step's commands, run one after the other, print what the page shows, and draw its pictures."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.as_user import completed
from tests.made import ROOT, executable

PAGE = ROOT / "docs/guide/tour.md"
LEFT_OUT = "..."
FAILS = re.compile(r"\bfail\b|first deviation: (?!none)")
COMPILES = {"4": [pytest.mark.build, pytest.mark.gdb], "10": [pytest.mark.build, pytest.mark.slow, pytest.mark.gdb]}
# CI has test_{trace_sim,profile_cli,joined,expectation,contenders}.py; these need kernels of their own.
COMPILES |= {step: [pytest.mark.build, pytest.mark.night] for step in ("5", "6", "7", "8")}


def shown(text):
    """(command, the lines that a page shows of its output) for each command in the console blocks of a text."""
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.splitlines()
            yield command, lines


def missing(lines, printed):
    """The first lines that the output does not have in this order; `...` stands for any lines."""
    at, free = 0, False
    for chunk in re.split(r"^\.\.\.$", "\n".join(lines), flags=re.MULTILINE):
        wanted = chunk.strip("\n").splitlines()
        starts = range(at, len(printed) - len(wanted) + 1) if free else [at]
        found = next((start for start in starts if printed[start : start + len(wanted)] == wanted), None)
        if found is None:
            return wanted
        at, free = found + len(wanted), True
    return [] if lines[-1:] in ([], [LEFT_OUT]) else printed[at:]


TEXTS = dict(re.findall(r"^## (\d+\. .*?)\n(.*?)(?=^## )", PAGE.read_text(), re.DOTALL | re.MULTILINE))
STEPS = [pytest.param(text, id=title, marks=COMPILES.get(title.partition(".")[0], [])) for title, text in TEXTS.items()]


def test_the_tour_has_ten_steps():
    assert [title.partition(".")[0] for title in TEXTS] == [str(number) for number in range(1, 11)]


@pytest.mark.parametrize(
    ("lines", "printed", "wrong"),
    [
        (["a", "b"], ["a", "b"], []),
        (["...", "b", "..."], ["a", "b", "c"], []),
        (["a", "...", "c"], ["a", "b", "c"], []),
        ([], ["a"], []),
        (["a"], ["a", "b"], ["b"]),
        (["b", "..."], ["a", "b"], ["b"]),
        (["...", "b", "...", "a", "..."], ["a", "b", "c"], ["a"]),
        (["...", "a", "c", "..."], ["a", "b", "c"], ["a", "c"]),
    ],
)
def test_what_a_page_shows_is_found_in_order(lines, printed, wrong):
    assert missing(lines, printed) == wrong


@pytest.mark.parametrize("text", STEPS)
def test_a_step_prints_what_the_page_shows(text, tmp_path, monkeypatch):
    clone, programs = tmp_path / "clone", tmp_path / "bin"
    shutil.copytree(ROOT / "docs/guide/tour", clone / "docs/guide/tour")
    (clone / "fattn_probe").symlink_to(ROOT / "fattn_probe")
    executable(programs / "fattn-probe", f'#!/bin/sh\nexec "{sys.executable}" -P -m fattn_probe "$@"\n')
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    for name, value in (("PATH", path), ("COLUMNS", "100"), ("PYTHONPATH", str(ROOT))):
        monkeypatch.setenv(name, value)
    commands = [*shown(text)]
    assert commands
    for command, lines in commands:
        program, *words = shlex.split(command)
        if program == "fattn-probe":
            done = completed(*words, cwd=clone)
        else:
            done = subprocess.run(["bash", "-c", command], cwd=clone, capture_output=True, text=True, check=False)
        printed = [line.rstrip() for line in done.stdout.splitlines()]
        assert (command, missing(lines, printed)) == (command, []), done.stdout + done.stderr
        assert done.returncode == (5 if FAILS.search("\n".join(lines)) else 0), done.stderr
    for picture in (clone / "docs/guide/tour").glob("*.svg"):
        assert picture.read_bytes() == (ROOT / "docs/guide/tour" / picture.name).read_bytes()
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert all(name in " ".join(command for command, _ in commands) for name in pictures)
