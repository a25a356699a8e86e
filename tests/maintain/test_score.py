"""The diagnosis on recorded outputs of the corpus: how often the first cause is the true one."""

from pathlib import Path

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.llama.source.faults import corpus
from fattn_probe.verdict.diagnose.faults import KINDS
from maintain.faults import first_cause
from maintain.outputs import cases_by_digest, devices_of, diagnosed_again, read
from maintain.score import grade, score

RECORDED = sorted((Path(__file__).parents[1] / "data/corpus").glob("*.npz"))
"""Made by `scripts/detection faults shows quick --keep`, without the largest."""
KNOWN = {fault.patch.name: fault for fault in corpus()}
SUITES = [Path(__file__).parents[2] / "suites/quick.yaml"]
SILENT = {"7465-tail-writes.quick"}
"""Every number of a row is replaced by one that is none."""


@pytest.fixture(scope="module")
def cases():
    return cases_by_digest(SUITES)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.rpartition(".")[0].rpartition(".")[0])
def test_the_first_cause_is_the_true_one(path, cases):
    recorded = read(path)
    fault = KNOWN[recorded.fault]
    assert recorded.patch == fault.patch.changes, "the patch has changed: record its output again"
    cause = first_cause(diagnosed_again(recorded, cases, devices_of(SUITES)))
    assert grade(cause, fault) == ("silent" if f"{recorded.fault}.{recorded.suite}" in SILENT else "right"), cause


@pytest.mark.parametrize(
    ("name", "cause", "expected"),
    [
        ("15178-tile-sinks-ignored", "sink", "right"),
        ("15178-tile-sinks-ignored", "", "silent"),
        ("15178-tile-sinks-ignored", "scale", "false"),
        ("21159-fixup-first-block", "kv-left-out", "right"),
        ("27678-two-barriers", "", "right"),
        ("27678-two-barriers", "share", "false"),
    ],
)
def test_grades(name, cause, expected):
    assert grade(cause, KNOWN[name]) == expected


def test_a_label_must_be_known():
    fault = KNOWN["15178-tile-sinks-ignored"]
    with pytest.raises(InputError, match="sinks is none of kv-left-out"):
        grade("sink", type(fault)(**{**vars(fault), "diagnosis": ("sinks",)}))


def test_a_score_in_words():
    assert score(["right", "right", "silent", "right"]) == (
        "4 diagnosed: 3 right (75 %), 1 silent (25 %), 0 false (0 %)"
    )
    assert score([]) == "nothing was diagnosed"


def test_the_docs_have_every_cause():
    text = (Path(__file__).parents[2] / "docs/reference/diagnosis.md").read_text()
    assert [kind for kind, words in KINDS.items() if f"| `{kind}` | {words} |" not in text] == []
