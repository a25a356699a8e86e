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


SUITE = """\
version: 1
about: two entries
scenarios: [a.yaml]
on: ["sim:h200"]
entries: [{name: races, scenarios: [a.yaml], on: ["sim:gtx1060"], flavour: check}]
"""


@pytest.fixture
def routine(tmp_path):
    """A suite of two entries, both with cases of these families; a larger n_kv for each next case."""
    path = tmp_path / "two.yaml"
    path.write_text(SUITE)
    spec = {"version": 1, "about": "x", "hsk": 64, "n_head": 2, "n_q": 1}

    def make(**families):
        made = Routine(path, RunOptions(None))
        cases = {
            name: resolve(Scenario.model_validate({**spec, "n_kv": 64 * at}), name, "file")
            for at, name in enumerate(families, 1)
        }
        for entry, target in made.targets:
            planned = {name: (case, frozenset({families[name]})) for name, case in cases.items()}
            made._planned[entry.name, str(target)] = planned
        return made

    return make


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["fattn-vec.cuh"], ["b"]),
        (["fattn-tile.cuh", "fattn-mma-f16.cuh"], ["a", "c"]),
        (["fattn-common.cuh"], ["a", "b", "c"]),
        (["fattn-vec.cuh", "fattn.cu"], ["a", "b", "c"]),
    ],
)
def test_cases_of_kernels_that_a_patch_cannot_change_are_left_out(routine, files, expected):
    made = routine(a="mma", b="vec", c="tile")
    assert [case.name for case in made.reached(patch(*files), *made.targets[0])] == expected


def test_batches_double_and_have_every_case_once_the_cheapest_first_entry_by_entry(routine):
    made = routine(**{f"n{at}": "vec" for at in range(50)})
    batches = list(made.batches(replace(FAULT, patch=patch("fattn.cu"))))
    flavours = [(batch.entry.flavour, str(batch.target), len(batch.cases)) for batch in batches]
    release, check = ("release", "sim:h200"), ("check", "sim:gtx1060")
    assert flavours == [(*release, 8), (*release, 16), (*release, 26), (*check, 8), (*check, 16), (*check, 26)]
    sizes = [case.op.sizes.n_kv for batch in batches[:3] for case in batch.cases]
    assert sizes == [64 * at for at in range(1, 51)]


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
