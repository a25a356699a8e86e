"""What releases support, known without a run."""

import json
import subprocess
import sys
from itertools import chain

import pytest

from fattn_probe.compare.judge.support import Known, capabilities, last_known, shipped, support_of, supporting, text_of
from fattn_probe.regress.changes import Kind, changes
from fattn_probe.regress.records import Result
from fattn_probe.regress.suite import cases_of, load_suite
from fattn_probe.run.kernels_by_op import op_digest
from fattn_probe.scenario.cases import resolve
from fattn_probe.scenario.files import cases_of as cases_in
from fattn_probe.scenario.schema import Scenario
from fattn_probe.shipped import files

EVERY = frozenset({"6.1", "9.0", "12.0"})
TEXT = """op,case,7551,8156,11549
1234,gqa,yes,yes,yes
5678,mla,no,9.0 12.0,
"""
OP = {"version": 1, "about": "x", "hsk": 64, "n_head": 2, "n_q": 1, "n_kv": 64}
CASE = resolve(Scenario.model_validate(OP), "x", "x")


def test_a_table_is_read_and_written():
    found = support_of(TEXT, EVERY)
    assert found == {
        "1234": Known("gqa", {7551: EVERY, 8156: EVERY, 11549: EVERY}),
        "5678": Known("mla", {7551: frozenset(), 8156: frozenset({"9.0", "12.0"})}),
    }
    assert text_of(found, EVERY) == TEXT


@pytest.mark.parametrize(
    ("build_number", "cc", "found"),
    [
        ("7551", "9.0", None),
        ("8155", "9.0", None),
        ("8156", "9.0", 8156),
        ("8156", "6.1", None),
        ("9000", "12.0", 8156),
        ("?", "9.0", 11549),
        ("11549", "6.1", 11549),
        ("7000", "9.0", None),
    ],
)
def test_the_last_release_before_a_source_decides(build_number, cc, found):
    known = Known("x", {7551: frozenset(), 8156: frozenset({"9.0", "12.0"}), 11549: EVERY})
    assert supporting(CASE.op, cc, build_number, {op_digest(CASE.op): known}) == found


def test_an_op_that_the_table_lacks_is_not_judged():
    assert supporting(CASE.op, "9.0", "11549", {}) is None
    assert last_known(CASE.op, "11549", {}) is None
    known = {op_digest(CASE.op): Known("x", {8156: frozenset()})}
    assert [last_known(CASE.op, number, known) for number in ("7551", "11549")] == [None, 8156]


def test_the_shipped_table_has_every_op_of_the_shipped_cases():
    """If this fails: scripts/support."""
    suites = (
        case for path in files("suite") for entry in load_suite(path).parts for case in cases_of(entry, path.parent)
    )
    cases = chain(cases_in(list(files("scenario"))), suites)
    table = shipped()
    missing = [case.name for case in cases if len(table.get(op_digest(case.op), Known("")).on) < 5]
    assert not missing


def test_the_default_source_supports_nearly_all_shipped_cases():
    on = [known.on[11549] for known in shipped().values()]
    assert sum(cc == capabilities() for cc in on) > 0.95 * len(on)


def test_a_case_that_is_refused_now_is_a_loss_of_support():
    before = Result("c", "d", "pass", output="00")
    after = Result("c", "d", "fail", "support lost: b11549 supports this op on compute capability 9.0: refused")
    (change,) = changes({"c": before}, {"c": after})
    assert (change.kind, change.alarm) == (Kind.SUPPORT_LOST, True)


@pytest.mark.build
@pytest.mark.network
@pytest.mark.slow
def test_a_refused_op_is_an_alarm_without_a_history(tmp_path):
    words = ("regress", "quick", "--filter", "^types-type_K=q5_0-n_q=5-n_kv=64$", "--history", str(tmp_path / "h.db"))
    command = [sys.executable, "-m", "fattn_probe", *words, "--patch", "faults/28455-kv-types", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    (result,) = json.loads(done.stdout)["runs"][0]["results"]
    assert (done.returncode, result["status"]) == (5, "fail")
    assert result["reason"].startswith("support lost: b11549 supports this op on compute capability 9.0: ")
