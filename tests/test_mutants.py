"""The mutation tester: what it changes, which tests it runs, and what it says of reasons that have no mutant."""

import math
import time

import pytest

pytest.importorskip("cosmic_ray")  # extra `mutants`

from fattn_probe.base.errors import ComparisonError
from tests.mutants import __main__ as command
from tests.mutants.explained import read
from tests.mutants.mutants import mutants_of
from tests.mutants.trial import those_that_run, tried
from tests.mutants.worker import Traced

SOURCE = '''"""A module."""

MOST = 2.0


def above(value: float | None, least: int = 1) -> bool:
    """Whether it is above."""
    if value is None:
        raise ValueError(f"{value + 1} of {MOST < 1}")
    return value > MOST and not value < least


def total(values):
    return (
        max(values) +
        3
    )
'''


@pytest.fixture
def root(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/__init__.py").write_text("")
    (tmp_path / "mine/limits.py").write_text(SOURCE)
    return tmp_path


def changes(root):
    return {(mutant.was, mutant.now): mutant for mutant in mutants_of("mine/limits.py", root)}


def test_comparisons_limits_logic_and_aggregations_are_changed_and_messages_are_not(root):
    found = {now for _, now in changes(root)}
    assert {"MOST = 4.0", "MOST = 1.0", "if value is not None:", "max(values) -", "min(values) +"} <= found
    assert {"return value >= MOST and not value < least", "return value > MOST or not value < least"} <= found
    assert {"return value <= MOST and not value < least", "return value > MOST and not value <= least"} <= found
    assert {now for was, now in changes(root) if was == "3"} == {"4", "2"}
    assert not [was for was, _ in changes(root) if "raise" in was or '"""' in was]
    assert {now for was, now in changes(root) if was.startswith("def above")} == {
        "def above(value: float | None, least: int = 2) -> bool:",
        "def above(value: float | None, least: int = 0) -> bool:",
    }


def test_a_mutant_is_the_whole_module_with_one_change(root):
    for mutant in changes(root).values():
        compile(mutant.source, "mine/limits.py", "exec")
        old, new = SOURCE.splitlines(), mutant.source.splitlines()
        assert [was.strip() for was in old][mutant.line - 1] == mutant.was
        assert sum(was != now for was, now in zip(old, new, strict=True)) == 1


def test_a_mutant_is_tried_with_the_tests_that_run_it(root):
    at = {number: frozenset({("mine/limits.py", number)}) for number in (8, 10, 15)}
    own = Traced("own", 0.2, frozenset({("test_mine.py", 11)}))  # of a constant, too
    tests = (Traced("slow", 2.0, at[10]), Traced("fast", 0.1, at[10] | at[8]), Traced("other", 0.1, at[15]), own)
    sources = {"mine/limits.py": SOURCE.splitlines(), "test_mine.py": TESTS.splitlines()}
    found = {
        now: [test.name for test in those_that_run(mutant, tests, sources)]
        for (_, now), mutant in changes(root).items()
    }
    assert found["return value > MOST or not value < least"] == ["fast", "slow"]
    assert found["if value is not None:"] == ["fast"]
    assert found["min(values) +"] == ["other"]
    assert found["MOST = 4.0"] == ["fast", "own", "slow"]  # of a constant, the lines that name it


TESTS = """
from mine.limits import MOST, above

def test_twice():
    assert above(2.5) and above(2.5)

def test_below():
    assert not above(1.5)

def test_most():
    assert MOST == 2
"""


def test_a_change_that_a_test_notices_and_one_that_none_does(root):
    (root / "test_mine.py").write_text(TESTS)
    found = dict(tried(list(changes(root).values()), ["mine/limits.py"], ["test_mine.py"], root, 2))
    noticed = {mutant.now for mutant, is_noticed in found.items() if is_noticed}
    assert set(found) == set(changes(root).values())
    assert {"return value <= MOST and not value < least", "MOST = 4.0", "if value is not None:"} <= noticed
    assert not {"return value >= MOST and not value < least", "min(values) +"} & noticed


@pytest.mark.night
def test_a_session_goes_on_where_it_was(root, monkeypatch):
    """What a test noticed is kept; what none did is tried again when a test has changed."""
    (root / "tests").mkdir()
    (root / "tests/test_mine.py").write_text(TESTS)
    monkeypatch.setattr(command, "ROOT", root)
    monkeypatch.setattr(command, "TESTS", ("tests/test_mine.py",))
    mutants, session = list(changes(root).values()), root / "session.jsonl"

    def run(deadline=math.inf):
        return command.results(mutants, ["mine/limits.py"], 2, session, deadline)

    began = run(time.monotonic())
    assert 0 < len(began) < len(mutants)
    found = run()
    assert set(found) == set(mutants) and began.items() <= found.items()
    lines = len(session.read_text().splitlines())
    assert run() == found and len(session.read_text().splitlines()) == lines == len(mutants)
    (root / "tests/test_mine.py").write_text(f"{TESTS}\n    assert not above(2.0)\n")
    again = run()
    assert {mutant.now for mutant in mutants if again[mutant] and not found[mutant]} >= {
        "return value >= MOST and not value < least"
    }
    assert len(session.read_text().splitlines()) == lines + sum(not noticed for noticed in found.values())


def test_why_a_test_fails_without_a_mutant_is_said(root):
    """It said `F`, after minutes."""
    (root / "test_mine.py").write_text(f"{TESTS}\ndef test_wrong():\n    assert above(2.5) is MOST\n")
    with pytest.raises(ComparisonError, match=r"test_wrong fails without a mutant:(?s:.)*assert True is 2\.0"):
        list(tried(list(changes(root).values()), ["mine/limits.py"], ["test_mine.py"], root, 1))


REASONS = """
- in: mine/limits.py
  why: no value is 2
  mutants:
  - {was: return value > MOST and not value < least, now: return value >= MOST and not value < least}
  - {was: return value > LESS, now: return value >= LESS}
"""


def test_a_reason_without_a_mutant_is_named(root):
    (root / "equivalent.yaml").write_text(REASONS)
    mutants, reasons = list(changes(root).values()), read(root / "equivalent.yaml")
    assert reasons.gone(mutants, ["mine/limits.py"]) == [
        ("mine/limits.py", "return value > LESS", "return value >= LESS")
    ]
    assert reasons.gone(mutants, ["mine/other.py"]) == []
    left = reasons.left(mutants)
    assert len(left) == len(mutants) - 1
    assert "return value >= MOST and not value < least" not in [mutant.now for mutant in left]


@pytest.mark.parametrize("again", [REASONS, REASONS.replace("no value is 2", "''")])
def test_a_mutant_has_one_reason(root, again):
    (root / "equivalent.yaml").write_text(REASONS + again if "''" not in again else again)
    with pytest.raises(ValueError, match="no reason, or two"):
        read(root / "equivalent.yaml")
