"""Lines that are argued unreachable: what of them was not executed does not count, and an argument can be refuted."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from fattn_probe.lab.detect.counts import CountedLine, LineCoverage, Share
from fattn_probe.lab.detect.measure import Measured
from fattn_probe.lab.detect.show import annotated, document, summary
from fattn_probe.lab.detect.unreachable import Unreachable, places, read, refuted
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from fattn_probe.llama.source.features import CUDA
from tests.stand_in import StandIn

SOURCE = """\
    if (amd(cc) && x) {
        return 1;
    }
    f();
    if (amd(cc) && x) {
"""


@dataclass(frozen=True)
class OneTree(StandIn):
    """A tree as far as its folder."""

    root: Path


@pytest.fixture
def tree(tmp_path):
    (tmp_path / CUDA).mkdir(parents=True)
    (tmp_path / CUDA / "a.cuh").write_text(SOURCE)
    return OneTree(tmp_path)


def entry(*lines, **more):
    return Unreachable(because="AMD's GPUs only, for a test.", file="a.cuh", lines=list(lines), **more)


def coverage(*counted, unreachable):
    found = LineCoverage(unreachable=unreachable)
    found.add([CountedLine("a.cuh", "f", *item) for item in counted], "sim:h200")
    return found


def test_lines_are_meant_by_their_text_and_range(tree):
    def numbers(*known):
        return sorted(line for _, line in places(tree, known))

    assert numbers(entry("if (amd(cc) && x) {")) == [1, 5]
    assert numbers(entry("if (amd(cc) && x) {", until="}")) == [1]
    assert numbers(entry("if (amd(cc) && x) {", after="f();")) == [5]
    assert numbers(entry("/./", after="/^return/", until="/amd/")) == [3, 4]
    assert numbers(entry("/./", after="g();")) == []
    assert numbers(entry("/amd/", "return 1;")) == [1, 2, 5]
    assert numbers(entry("amd")) == []
    assert numbers(Unreachable(because="in no file of this release", file="b.cuh", lines=["f();"])) == []


def test_only_what_was_executed_of_them_counts(tree):
    known = places(tree, [entry("/amd/", "return 1;", until="}")])
    lines = (1, 9, (0, 9)), (2, 0), (4, 9), (5, 9, (0, 9))
    found = coverage(*lines, unreachable=known)
    assert found.lines("a.cuh") == Share(3, 3)
    assert found.branches("a.cuh") == Share(2, 3)
    assert (found.gaps("a.cuh"), found.one_sided("a.cuh"), found.left_out("a.cuh")) == ([], [5], [1, 2])
    assert refuted(found) == []
    plain = coverage(*lines, unreachable={})
    assert (plain.lines("a.cuh"), plain.branches("a.cuh")) == (Share(3, 4), Share(2, 4))
    (suite,) = document([Measured("quick", found, ("sim:h200",), 1, ())])["suites"]
    assert suite["files"][0]["unreachable"] == [
        [1, "AMD's GPUs only, for a test."],
        [2, "AMD's GPUs only, for a test."],
    ]
    kinds = [line["kind"] for line in annotated(tree.root / CUDA / "a.cuh", "a.cuh", found)]
    assert kinds == ["argued", "argued", "", "", "partly"]


def test_an_argument_that_a_run_refutes_is_named(tree):
    known = places(tree, [entry("/amd/")])
    found = coverage((1, 9, (1, 8)), (5, 9, (0, 9)), unreachable=known)
    assert refuted(found) == [("a.cuh", 1)]
    said = "\n".join(summary(Measured("quick", found, ("sim:h200",), 1, ())))
    assert "a.cuh:1 was executed, but unreachable.yaml says that it cannot be" in said
    assert "left out: 1 line" in said


@pytest.mark.network
def test_every_entry_means_a_line_of_the_default_release():
    tree = resolve(DEFAULT_SOURCE)
    for item in read():
        assert places(tree, [item]), item
