"""What a bench makes of a mutant's runs, with runners that only say how they ended."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fattn_probe.compare.judge.checks import Checks
from fattn_probe.detect.bench import AgainstAlone, Bench, Place, Trial
from fattn_probe.detect.killed_by import LOST, MISSING
from fattn_probe.errors import LostError, MachineError
from fattn_probe.run.batch import RunnerEndedError

ALONE = (b"bits", "launches")


@dataclass
class Child:
    """A run that ended with a code and an output."""

    output: tuple[bytes, str]
    code: int = 0
    seconds: float = 0.5


@dataclass
class Runner:
    """A runner whose every run ends alike."""

    child: Child
    limits: list[float] = field(default_factory=list)

    def run(self, file, part, mutant, limit):
        self.limits.append(limit)
        return self.child


class Judged(Place):
    """A place whose judgement of an output is in a table; anything else must not be judged."""

    verdicts: dict[tuple[bytes, str], tuple[str, str]]

    def judge(self, child, judged):
        return self.verdicts[child.output]


def place(*children: Any, **verdicts: Any) -> Any:
    runners: Any = [Runner(child) for child in children]
    nothing: Any = None
    judged = AgainstAlone(nothing, nothing, {}, Checks())
    made = Judged(nothing, judged, Path("case.gguf"), None, None, runners, (None, None))
    made.alone, made.limit = ALONE, 7.0
    made.verdicts = {(name.encode(), "launches"): verdict for name, verdict in verdicts.items()}
    return made


def test_equal_bits_and_launches_are_not_judged():
    made = place(Child(ALONE), Child(ALONE))
    assert made.tried(3) == Trial(3, "", "", 1.0)
    assert [runner.limits for runner in made.runners] == [[7.0], [7.0]]


@pytest.mark.parametrize(("by", "said"), [("verdict", "wrong"), ("stopped", "a trap"), (MISSING, "_Z3foo")])
def test_other_bits_are_judged(by, said):
    assert place(Child((b"other", "launches")), other=(by, said)).tried(3) == Trial(3, by, said, 0.5)


def test_a_case_without_a_mutant_is_not_judged_beside_its_own_output(tmp_path):
    """Beside itself no output is wrong: a case that a known defect fails killed mutants that launch another grid."""
    made, work = place(Child(ALONE)), SimpleNamespace(judge=True)
    made.without, beside = "its capture", list[Any]()

    class Watched(Bench):
        def place(self, number, case):
            return made

    def judge(child, judged):
        beside.append(judged.beside)
        return "verdict", "wrong"

    made.judge, works, case = judge, cast(Any, [work]), cast(Any, None)
    assert Watched(works, tmp_path).run_alone(0, case).failure == "verdict: wrong"
    made.runners[0].child = Child((b"other", "launches"))
    made.tried(3)
    assert Watched(works, tmp_path).run_alone(0, case).failure == "verdict: wrong"
    assert beside == [None, "its capture", None]


def test_a_run_without_an_output_is_judged():
    made = place(Child((b"", ""), code=86))
    made.verdicts = {(b"", ""): ("stopped", "out of bounds")}
    assert made.tried(3) == Trial(3, "stopped", "out of bounds", 0.5, changed=True)


def test_other_launches_with_a_right_output_are_noted():
    made = place(Child((b"bits", "another grid")))
    made.verdicts = {(b"bits", "another grid"): ("", "")}
    assert made.tried(3) == Trial(3, "", "", 0.5, changed=True)


def test_another_order_of_warps_with_other_bits_is_a_race():
    made = place(Child(ALONE), Child((b"other", "launches")))
    found = made.tried(3)
    assert (found.by, found.seconds) == ("check", 1.0)


def test_right_bits_that_are_not_those_without_the_mutant_may_stay_the_same_in_every_order():
    other = Child((b"other", "launches"))
    assert place(other, other, other=("", "")).tried(3).by == ""
    assert place(other, Child(ALONE), other=("", "")).tried(3).by == "check"


def test_a_crash_in_another_order_is_judged():
    made = place(Child(ALONE), Child((b"", ""), code=86))
    made.verdicts = {(b"", ""): ("checker", "a race")}
    assert made.tried(3).by == "checker"


class Broken(Bench):
    """A bench on which nothing can be set up, or on which what is set up raises an error."""

    error: Exception
    made: Any = None

    def place(self, number, case):
        if self.made is None:
            raise self.error
        return self.made


def broken(folder, error, made=None):
    bench, nothing = Broken(cast(Any, []), folder), cast(Any, None)
    bench.error, bench.made = error, made
    return bench.tried(0, nothing, 3)


ENOSPC = OSError(28, "No space left on device")


@pytest.mark.parametrize("error", [LostError("the runner did not start"), MachineError("no memory"), ENOSPC])
def test_a_case_that_cannot_be_set_up_gives_no_verdict(tmp_path, error):
    found = broken(tmp_path, error)
    assert found == Trial(3, LOST, f"{type(error).__name__}: {error}", 0.0)


@pytest.mark.parametrize(
    ("error", "by"),
    [(RunnerEndedError("no answer after 38 s"), "stopped"), (ENOSPC, LOST), (ValueError("bad"), LOST)],
)
def test_only_a_run_that_ends_its_runner_or_hangs_is_stopped(tmp_path, error, by):
    made = place(Child(ALONE))

    def run(*_: Any) -> Any:
        raise error

    made.runners[0].run = run
    assert broken(tmp_path, error, made) == Trial(3, by, f"{type(error).__name__}: {error}", 0.0)
