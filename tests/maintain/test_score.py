"""Recorded outputs of the corpus: which are kept, and how often the first cause is the true one."""

from dataclasses import replace

import numpy as np
import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.lab.detect.counts import Equivalent
from fattn_probe.lab.detect.mutants import Mutant
from fattn_probe.lab.detect.verdicts import MutantVerdict
from fattn_probe.llama.source.faults import corpus
from fattn_probe.verdict.diagnose.faults import KINDS
from fattn_probe.verdict.judge.bitwise import Check
from fattn_probe.verdict.judge.judgement import Judgement
from fattn_probe.verdict.measure.verdict import Status, Verdict
from maintain.corpus_page import grade, score
from maintain.faults import first_cause
from maintain.mutants_table import Column, counted, page
from maintain.outputs import MOST, Keep, cases_by_digest, diagnosed_again, read
from tests.made import ROOT, case_of, launch_of

RECORDED = sorted((ROOT / "tests/data/corpus").glob("*.npz"))
"""Made by `scripts/detection faults shows quick --keep`, without the largest."""
KNOWN = {fault.patch.name: fault for fault in corpus()}
SUITES = [ROOT / "suites/quick.yaml"]
SILENT = {"7465-tail-writes.quick"}
"""Every number of a row is replaced by one that is none."""
NIGHT = {"13469-barrier-for-some-warps", "14628-fixup-layout-general", "15157-sinks-twice"}
"""CI has smaller outputs with the same causes."""


@pytest.fixture(scope="module")
def cases():
    return cases_by_digest(SUITES)


def at_night(path):
    """Whether CI has another output of the fault, or of one with the same cause."""
    fault, suite, *_ = path.name.split(".")
    return fault in NIGHT or (suite == "quick" and any(RECORDED[0].parent.glob(f"{fault}.shows.*")))


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=pytest.mark.night if at_night(path) else (), id=path.name) for path in RECORDED]
)
def test_the_first_cause_is_the_true_one(path, cases):
    recorded = read(path)
    fault = KNOWN[recorded.fault]
    assert recorded.patch == fault.patch.changes, "the patch has changed: record its output again"
    cause = first_cause(diagnosed_again(recorded, cases))
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


def test_a_label_must_be_known_and_a_score_is_in_words():
    fault = KNOWN["15178-tile-sinks-ignored"]
    with pytest.raises(InputError, match="sinks is not one of kv-left-out"):
        grade("sink", type(fault)(**{**vars(fault), "diagnosis": ("sinks",)}))
    assert score(["right", "right", "silent", "right"]) == (
        "4 diagnosed: 3 right (75 %), 1 silent (25 %), 0 false (0 %)"
    )
    assert score([]) == "nothing was diagnosed"


def test_the_docs_have_every_cause():
    text = (ROOT / "docs/reference/diagnosis.md").read_text()
    assert [kind for kind, words in KINDS.items() if f"| `{kind}` | {words} |" not in text] == []


MUTANTS = [
    Mutant(number, f"fattn-{'vec' if number < 4 else 'tile'}.cuh", number, "relation", "a", "b") for number in range(6)
]
BY_DIGEST = {mutant.digest: mutant for mutant in MUTANTS}


def column(name, *fates):
    pairs = [(item, fate) for item, fate in zip(MUTANTS, fates, strict=False) if fate]
    found = [
        MutantVerdict(item, "", "verdict" if fate == "killed" else "", "", "", 1, 0.0, fate == "another kernel")
        for item, fate in pairs
    ]
    return Column.of(name, found, history=name != "upstream")


def test_a_row_for_each_file_all_the_held_out_half_and_with_a_history():
    quick = column("quick", "killed", "survived", "killed", "killed", "survived", "killed")
    upstream = column("upstream", "survived", "survived", "survived", "killed", "survived", None)
    lines = page(BY_DIGEST, [quick, upstream]).splitlines()
    assert lines[0] == "| mutants of | number | quick | upstream |"
    assert lines[2] == "| `fattn-tile.cuh` | 2 | 50.0 % (1) | 0.0 % (0), 1 open |"
    assert lines[3] == "| `fattn-vec.cuh` | 4 | 75.0 % (3) | 25.0 % (1) |"
    assert lines[4] == "| all | 6 | 66.7 % (4) | 16.7 % (1), 1 open |"
    odd = [item for item in MUTANTS if int(item.digest, 16) % 2]
    line = page(BY_DIGEST, [column("quick", *["killed"] * 6)]).splitlines()[5]
    assert line == f"| held out | {len(odd)} | 100.0 % ({len(odd)}) |"
    fates = ["killed", "another kernel", "survived", "killed", "another kernel", "survived"]
    lines = page(BY_DIGEST, [column("quick", *fates), column("upstream", *fates)]).splitlines()
    assert lines[4] == "| all | 6 | 33.3 % (2) | 33.3 % (2) |"
    assert lines[6] == "| all, with a history | 6 | 66.7 % (4) | 33.3 % (2) |"


def test_equivalent_mutants_do_not_count_unless_one_is_killed():
    known = [Equivalent(because="nothing can tell b from a in any case", file="fattn-tile.cuh", after="b")]
    quick = column("quick", *["survived"] * 5, "killed")
    assert {item.id for item in counted(BY_DIGEST, [quick], known).values()} == {0, 1, 2, 3, 5}
    assert list(counted(BY_DIGEST, [quick], (), sample=2)) == sorted(BY_DIGEST)[:2]


LAUNCH = launch_of("flash_attn_ext_f16<64, 64, 8, 1, false, false, false>", (2, 1, 1), (32, 2, 1))


@pytest.fixture
def wrong():
    case = case_of("version: 1\nabout: x\nhsk: 64\nn_head: 2\nn_q: 4\nn_kv: 64\n")
    dst = np.zeros(case.op.sizes.dst, np.float32)
    dst[0, 1, 1] = np.nan
    verdict = Verdict(Status.FAIL, "x")
    return case, Judgement(case.name, "sim:h200", case.tolerance, verdict, (LAUNCH,), digest=case.digest, dst=dst)


@pytest.mark.parametrize("on", ["sim:h200", "sim:h200-5"])
def test_a_recorded_output_is_judged_again(tmp_path, wrong, on):
    case, judgement = wrong
    Keep(tmp_path, "1-fault", "patch", "quick").add(replace(judgement, on=on))
    (path,) = tmp_path.iterdir()
    found = read(path)
    assert (found.fault, found.suite, found.case, found.on) == ("1-fault", "quick", case.name, on)
    np.testing.assert_array_equal(found.dst, judgement.dst)
    again = diagnosed_again(found, {case.digest: case})
    assert again.elements == judgement.dst.size
    assert again.worst[0].tile is not None
    assert [said.cause.kind for said in again.causes] == ["zero"]


@pytest.mark.parametrize("contents", [b"", b"PK\x03\x04 cut", b"text"])
def test_a_damaged_file_is_named(tmp_path, contents):
    path = tmp_path / "1-fault.npz"
    path.write_bytes(contents)
    with pytest.raises(InputError, match=r"1-fault\.npz: no recorded output"):
        read(path)


def test_only_the_first_small_wrong_outputs_are_kept(tmp_path, wrong):
    keep = Keep(tmp_path, "1-fault", "patch", "quick")
    keep.add(replace(wrong[1], verdict=Verdict(Status.PASS, "")))
    roundings = Check("roundings", False, True, "0 % of the bits equal the model")
    keep.add(replace(wrong[1], verdict=Verdict(Status.PASS, ""), checks=(roundings,)))
    keep.add(replace(wrong[1], dst=None))
    keep.add(replace(wrong[1], dst=np.zeros((1, 1, 1, 200_000), np.float32)))
    assert list(tmp_path.iterdir()) == []
    for number in range(MOST + 2):
        keep.add(replace(wrong[1], digest=str(number)))
    assert len(list(tmp_path.iterdir())) == MOST
