"""What a worker makes of a mutant's runs, with runners that only say how they ended."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fattn_probe.base.errors import LostError, MachineError
from fattn_probe.lab.detect.verdicts import LOST, MISSING
from fattn_probe.lab.detect.worker import PreparedCase, Trial, Worker, noted_in
from fattn_probe.machine.run.outcome import Failed
from fattn_probe.machine.run.runner import RunnerEndedError
from fattn_probe.verdict.judge.cases import JudgedCase
from fattn_probe.verdict.judge.checks import Checks


@dataclass
class Child:
    """A run that ended with a code and an output."""

    output: tuple[bytes, str]
    code: int = 0
    seconds: float = 0.5


@dataclass
class Runner:
    """A runner whose runs end one after another as in a list with their mutants; the last one ends all later ones."""

    ends: list[tuple[int, Any]]
    limits: list[float] = field(default_factory=list)

    def run(self, file, part, mutant, limit):
        self.limits.append(limit)
        expected, end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        assert mutant == expected
        if isinstance(end, Exception):
            raise end
        return end


class Judged(PreparedCase):
    """A case whose judgement of an output is in a table; anything else must not be judged."""

    verdicts: dict[tuple[bytes, str], tuple[str, str]]

    def judge(self, child, judged):
        return self.verdicts[child.output]


SAME, OTHER, GRID = ((bits, grid) for bits, grid in ((b"bits", "a"), (b"other", "a"), (b"bits", "another grid")))
NONE = (b"", "")
ENDED = Child(NONE, code=86)


def prepared(*ends: Any, verdict: tuple[str, str] = ("", "")) -> Any:
    """A case with a runner for each order of warps, whose every run ends alike, unless it is a list of ends."""
    runners: Any = [Runner(end if isinstance(end, list) else [(3, end)]) for end in ends]
    nothing: Any = None
    judged = JudgedCase(nothing, nothing, nothing, Checks(), 90, None)
    part: Any = SimpleNamespace(upstream=False, checks=Checks())
    made = Judged(part, judged, Path("case.gguf"), None, runners)
    made.output, made.limit = SAME, 7.0
    made.verdicts = dict.fromkeys((OTHER, GRID, NONE), verdict)
    return made


def test_equal_bits_and_launches_are_not_judged():
    made = prepared(Child(SAME), Child(SAME))
    made.verdicts = {}
    assert made.trial(3) == Trial(3, "", "", 1.0)
    assert [runner.limits for runner in made.runners] == [[7.0], [7.0]]


@pytest.mark.parametrize(
    ("ends", "found", "changed"),
    [
        ([Child(OTHER)], ("verdict", "wrong"), False),
        ([Child(OTHER)], ("stopped", "a trap"), False),
        ([Child(OTHER)], (MISSING, "_Z3foo"), False),
        ([ENDED], ("stopped", "out of bounds"), True),
        ([Child(GRID)], ("", ""), True),  # a correct output by other launches
        ([Child(SAME), ENDED], ("checker", "a race"), True),  # in another order of warps
        ([Child(OTHER), Child(OTHER)], ("", ""), False),  # correct, with other bits, and the same in every order
    ],
)
def test_runs_that_differ_from_the_baseline_are_judged(ends, found, changed):
    by, said = found
    assert prepared(*ends, verdict=found).trial(3) == Trial(3, by, said, 0.5 * len(ends), changed)


@pytest.mark.parametrize("ends", [(SAME, OTHER), (OTHER, SAME)])
def test_another_order_of_warps_with_other_bits_is_a_race(ends):
    found = prepared(*map(Child, ends)).trial(3)
    assert (found.by, found.said, found.seconds) == ("check", "a different order of warps gives different bits", 1.0)


@dataclass
class StandIn(Worker):
    """A worker with one case that is set up; without it, one that can set nothing up."""

    made: Any = None
    error: Exception = field(default_factory=Exception)

    def prepared(self, number, case):
        if self.made is None:
            raise self.error
        return self.made


GQA = cast(Any, SimpleNamespace(name="gqa"))


def test_a_case_without_a_mutant_is_not_judged_beside_its_own_output(tmp_path):
    """Beside itself no output is wrong: a case that a known defect fails killed mutants that launch another grid."""
    made, beside = prepared([(0, Child(SAME)), (3, Child(OTHER)), (0, Child(SAME))]), list[Any]()
    made.baseline = "its capture"

    def judge(child, judged):
        beside.append(judged.baseline)
        return "verdict", "wrong"

    made.judge = judge
    worker = StandIn(cast(Any, [SimpleNamespace(judge=True)]), tmp_path, made=made)
    assert worker.baseline(0, GQA).failure == "verdict: wrong"
    made.trial(3)
    assert worker.baseline(0, GQA).failure == "verdict: wrong"
    assert beside == [None, "its capture", None]


def test_a_run_notes_what_it_reaches_and_what_it_infects(tmp_path):
    (tmp_path / "reached").write_text("3 1\n7 0\n")
    assert noted_in(tmp_path / "reached") == (frozenset({3, 7}), frozenset({3}))
    assert noted_in(tmp_path / "none") == (frozenset(), frozenset())


ENOSPC = OSError(28, "No space left on device")


@pytest.mark.parametrize("error", [LostError("the runner did not start"), MachineError("no memory"), ENOSPC])
def test_a_case_that_cannot_be_set_up_gives_no_verdict(tmp_path, error):
    worker, said = StandIn([], tmp_path, error=error), f"{type(error).__name__}: {error}"
    assert worker.trials(0, GQA, [3]) == [Trial(3, LOST, said, 0.0)]
    assert worker.baseline(0, GQA).failure == f"lost: {said}"


NO_ANSWER = RunnerEndedError("no answer after 38 s", Failed("no answer after 38 s", ()))
SLOW = Child(NONE, code=-27, seconds=7.0)


@pytest.mark.parametrize(
    ("ends", "by", "said"),
    [
        ([(3, RunnerEndedError("the runner is gone"))], LOST, "LostError: the runner is gone"),
        ([(3, ENOSPC)], LOST, "OSError: [Errno 28] No space left on device"),
        ([(3, ValueError("bad"))], LOST, "ValueError: bad"),
        ([(3, Child(NONE, code=-9))], LOST, "LostError: the run was killed by SIGKILL"),
        ([(3, SLOW), (0, Child(SAME)), (3, SLOW)], "stopped", "timed out after 10.0 s of CPU time, 20 times"),
        ([(3, NO_ANSWER), (0, Child(SAME)), (3, NO_ANSWER)], "stopped", "no answer after 38 s"),
        ([(3, SLOW), (0, Child(SAME)), (3, Child(SAME))], "", ""),
        ([(3, NO_ANSWER), (0, Child(SAME)), (3, RunnerEndedError("gone"))], LOST, "LostError: gone"),
        ([(3, SLOW), (0, SLOW)], LOST, "LostError: hangs without the mutant too: timed out after 7.0 s of CPU time"),
        ([(3, NO_ANSWER), (0, NO_ANSWER)], LOST, "LostError: hangs without the mutant too: no answer after 38 s"),
    ],
)
def test_an_error_is_no_kill_nor_a_hang_unless_it_hangs_again_where_the_case_does_not(tmp_path, ends, by, said):
    """A runner that the system killed and a time-out on a busy machine were counted as kills."""
    made = prepared(ends)
    found = StandIn([], tmp_path, made=made).trial(0, GQA, 3)
    assert (found.by, found.said.startswith(said)) == (by, True)
    assert len(made.runners[0].ends) == 1
