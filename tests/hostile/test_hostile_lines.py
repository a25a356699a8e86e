"""Command lines that strain terminals, streams and processes; all of them at night, every twelfth before."""

import pytest

from tests.hostile.lines import Line, lines, make_folder, problems

PART = 12


def behaves(line: Line, folder):
    make_folder(folder)
    assert problems(line, folder) == []


def texts(some):
    return [line.text for line in some]


@pytest.mark.parametrize("line", lines(builds=False)[::PART], ids=texts(lines(builds=False)[::PART]))
def test_some_lines(line, tmp_path):
    behaves(line, tmp_path)


@pytest.mark.night
@pytest.mark.hostile
@pytest.mark.parametrize("line", lines(builds=False), ids=texts(lines(builds=False)))
def test_all_lines(line, tmp_path):
    behaves(line, tmp_path)


@pytest.mark.night
@pytest.mark.hostile
@pytest.mark.build
@pytest.mark.parametrize("line", lines(builds=True), ids=texts(lines(builds=True)))
def test_lines_with_kernels(line, tmp_path):
    behaves(line, tmp_path)


def test_there_are_many_lines():
    assert len(set(texts(lines()))) == len(lines()) >= 120
