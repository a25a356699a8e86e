"""Planted faults: which cases are tried, what counts as caught, and the page."""

from dataclasses import replace
from pathlib import Path

import pytest

from fattn_probe.compare.judge.finding import Finding
from fattn_probe.detect.planted import Caught, Routine, Tried, given_away, text_of, tried_of
from fattn_probe.detect.planted_page import page
from fattn_probe.regress.records import Result
from fattn_probe.run.session import RunOptions
from fattn_probe.scenario.cases import resolve
from fattn_probe.scenario.schema import Scenario
from fattn_probe.source.faults import corpus
from fattn_probe.source.patches import Patch

RESULT = Result("case", "digest", "pass")
FAULT = corpus()[0]
"""Any fault of the corpus."""


def patch(*files):
    text = "".join(f"--- a/ggml/src/ggml-cuda/{name}\n+++ b/ggml/src/ggml-cuda/{name}\n@@ -1 +1 @@\n" for name in files)
    return Patch("fault", Path("fault.patch"), "", (), text)


def routine(**families):
    """A suite of one target, with cases of these families; a larger n_kv for each next case."""
    made = Routine(Path("suites/quick.yaml").absolute(), RunOptions(None))
    spec = {"version": 1, "about": "x", "hsk": 64, "n_head": 2, "n_q": 1}
    cases = {
        name: resolve(Scenario.model_validate({**spec, "n_kv": 64 * at}), name, "file")
        for at, name in enumerate(families, 1)
    }
    ((entry, target),) = made.targets
    made._planned[entry.name, str(target)] = {name: (case, frozenset({families[name]})) for name, case in cases.items()}
    return made


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["fattn-vec.cuh"], ["b"]),
        (["fattn-tile.cuh", "fattn-mma-f16.cuh"], ["a", "c"]),
        (["fattn-common.cuh"], ["a", "b", "c"]),
        (["fattn-vec.cuh", "fattn.cu"], ["a", "b", "c"]),
    ],
)
def test_cases_of_kernels_that_a_patch_cannot_change_are_left_out(files, expected):
    made = routine(a="mma", b="vec", c="tile")
    assert [case.name for case in made.reached(patch(*files), *made.targets[0])] == expected


def test_batches_double_and_have_every_case_once_the_cheapest_first():
    made = routine(**{f"n{at}": "vec" for at in range(50)})
    sizes = [
        [case.op.sizes.n_kv for case in batch.cases] for batch in made.batches(replace(FAULT, patch=patch("fattn.cu")))
    ]
    assert [len(batch) for batch in sizes] == [8, 16, 26]
    assert [n_kv for batch in sizes for n_kv in batch] == [64 * at for at in range(1, 51)]


@pytest.mark.parametrize(
    ("result", "by"),
    [
        (RESULT, ""),
        (replace(RESULT, status="fail"), "verdict"),
        (replace(RESULT, status="fail", known="k-stride"), ""),
        (replace(RESULT, status="unsupported"), "support"),
        (replace(RESULT, status="lost"), "stopped"),
        (replace(RESULT, status="fail", finding=Finding("race", "x")), "stopped"),
    ],
)
def test_what_gives_a_fault_away(result, by):
    assert given_away(result) == by


def tried(caught):
    return Tried(FAULT.patch.name, FAULT.patch.changes, "quick", caught, 5, 12.3, text_of("quick"))


CAUGHT = Caught("sim:h200", "decode", "verdict", "wrong | rows", cause="kv-left-out")


def test_a_result_survives_its_line():
    for item in (tried(None), tried(CAUGHT)):
        assert tried_of(item.document()) == item


def test_the_page_counts_the_latest_result_of_each_fault():
    text = page([FAULT], [tried(None), tried(CAUGHT)])
    assert "**1 of 1 caught (100 %)**." in text
    assert "wrong \\| rows" in text
    assert "**0 of 1 caught (0 %)**" in page([FAULT], [tried(CAUGHT), tried(None)])


def test_a_result_of_an_older_patch_does_not_count():
    assert "## quick" in page([FAULT], [tried(CAUGHT)])
    assert "## quick" not in page([FAULT], [replace(tried(CAUGHT), digest="other")])


def test_a_result_of_an_older_suite_does_not_count():
    assert "## quick" not in page([FAULT], [replace(tried(CAUGHT), text="other")])
