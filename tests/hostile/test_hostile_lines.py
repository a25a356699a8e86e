"""Command lines that strain terminals, streams and processes; all of them at night, some before."""

import pytest

from tests.hostile.lines import lines, make_folder, problems

NIGHT = [pytest.mark.night, pytest.mark.hostile]


def marked(line):
    return pytest.param(line, id=line.text, marks=[*([] if line.ci else NIGHT), *[pytest.mark.build] * line.builds])


@pytest.mark.parametrize("line", [marked(line) for line in lines()])
def test_a_line(line, tmp_path):
    make_folder(tmp_path)
    assert problems(line, tmp_path) == []


def test_there_are_many_lines():
    assert len({line.text for line in lines()}) == len(lines()) >= 120
