import pytest

from fattn_probe.base.console import OUT
from fattn_probe.base.errors import BuildError, InputError
from fattn_probe.cases.device.target import Target
from fattn_probe.cases.scenario import expand, load
from fattn_probe.daily.regress import versions
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.tables import bisection_json, render_bisection
from fattn_probe.llama.source import patches
from fattn_probe.llama.source.faults import corpus
from fattn_probe.machine.run.session import RunOptions, Session
from tests.made import target
from tests.stand_in import StandIn

RELEASES = [f"pypi:x=={number}" for number in range(20)]


H200 = Target("sim")


class Case(StandIn):
    name = "c"
    digest = "d"


TOO_OLD = "the kernels of this release are too old"


@pytest.fixture
def releases(monkeypatch):
    """Releases from `bad` on are wrong; those of `skipped` have another status, or cannot be built."""

    def made(bad, skipped=None):
        skipped, tried = skipped or {}, list[str]()

        def result_of(source, case, target):
            tried.append(source)
            number = RELEASES.index(source)
            status = skipped.get(number, "fail" if number >= bad else "pass")
            reason = TOO_OLD if number in skipped else ""
            return Result(case.name, "d", status, reason, failure="wrong" if status == "fail" else "")

        def session_of(source):
            """The source itself: `result_of` takes it for a session."""
            if skipped.get(RELEASES.index(source)) == "broken":
                raise BuildError(TOO_OLD)
            return source

        monkeypatch.setattr(versions, "result_of", result_of)
        return session_of, tried

    return made


@pytest.mark.parametrize("bad", [1, 2, 7, 10, 18, 19])
def test_the_first_bad_release_is_found(releases, bad):
    session_of, tried = releases(bad)
    found = versions.bisect(session_of, RELEASES, Case(), H200)
    assert found.bad == RELEASES[bad]
    assert found.result.failure == "wrong"
    assert len(tried) == len(set(tried)) <= versions.runs_of(len(RELEASES)) == 7


@pytest.mark.parametrize(
    ("bad", "said"),
    [(0, "the good source pypi:x==0 does not pass c: fail"), (99, "the bad source pypi:x==19 does not fail c: pass")],
)
def test_ends_that_are_not_good_and_bad(releases, bad, said):
    with pytest.raises(InputError, match=said):
        versions.bisect(releases(bad)[0], RELEASES, Case(), H200)


@pytest.mark.parametrize("status", ["lost", "unsupported", "unjudged", "broken"])
@pytest.mark.parametrize("bad", [3, 8, 12, 17])
def test_a_release_without_a_verdict_is_neither_good_nor_bad(releases, status, bad):
    skipped = {number: status for number in (9, 10, 14) if number != bad}
    found = versions.bisect(releases(bad, skipped)[0], RELEASES, Case(), H200)
    assert found.suspects == (RELEASES[bad],)
    tried = {source: result.status for source, result in found.tried}
    assert all(tried[RELEASES[number]] not in ("pass", "fail") for number in skipped if RELEASES[number] in tried)


def test_skipped_releases_before_the_first_bad_one_are_suspects_too(releases):
    """As `git bisect skip` says: the first bad commit could be any of these."""
    found = versions.bisect(releases(10, {8: "lost", 9: "unsupported"})[0], RELEASES, Case(), H200)
    assert found.suspects == tuple(RELEASES[8:11])
    assert found.bad == RELEASES[10]
    document = bisection_json(found)
    assert document["suspects"] == tuple(RELEASES[8:11])
    assert document["skipped"] == {RELEASES[9]: TOO_OLD, RELEASES[8]: TOO_OLD}
    with OUT.capture() as captured:
        OUT.print(render_bisection(found))
    said = " ".join(captured.get().split())
    assert f"{RELEASES[8]}: skipped, lost: {TOO_OLD}" in said
    assert f"the first bad source is one of {', '.join(RELEASES[8:11])}" in said


@pytest.mark.parametrize(("end", "said"), [(0, "the good source pypi:x==0 does not pass"), (19, "does not fail")])
@pytest.mark.parametrize("status", ["lost", "broken"])
def test_an_end_without_a_verdict_is_refused_with_the_reason(releases, end, said, status):
    with pytest.raises(InputError, match=f"{said} c: lost: {TOO_OLD}"):
        versions.bisect(releases(7, {end: status})[0], RELEASES, Case(), H200)


def test_releases_between_two_and_two_side_by_side(releases):
    assert versions.between(RELEASES, RELEASES[3], RELEASES[6]) == RELEASES[3:7]
    assert [versions.runs_of(number) for number in (2, 3, 4, 5, 6)] == [2, 3, 4, 4, 5]
    with pytest.raises(InputError, match="does not come before"):
        versions.between(RELEASES, RELEASES[6], RELEASES[3])
    with pytest.raises(
        InputError, match=r"x==77 is not a release from pypi:x==0 to pypi:x==19; did you mean 'pypi:x==7'"
    ):
        versions.between(RELEASES, "pypi:x==77", RELEASES[3])
    found = versions.diff(releases(5)[0], (RELEASES[1], RELEASES[9]), [Case()], H200, lambda *_: None)
    assert [change.kind for change in found.changes] == ["new failure"]


@pytest.mark.build
@pytest.mark.network
@pytest.mark.night
def test_the_step_that_plants_a_fault_of_an_amd_gpu_is_found(tree):
    """Steps add patches to a release; those before the fault do not change what the kernel does."""
    fault = next(fault for fault in corpus() if fault.patch.name == "1087-sudot4-sign")
    (shown,) = fault.shows
    (case,) = expand(load(shown.scenario))
    added = [
        patches.find(name, tree) for name in ("fault-mask-scan", "fault-mask-stride", fault.name, "fault-tail-queries")
    ]
    steps = {f"step {at}": tuple(added[:at]) for at in range(len(added) + 1)}
    sessions = {step: Session(RunOptions(tree, patches=those)) for step, those in steps.items()}
    found = versions.bisect(sessions.__getitem__, [*steps], case, target(f"sim:{shown.device}"))
    assert found.suspects == ("step 3",)
    assert {step: result.status for step, result in found.tried} == {
        "step 0": "pass",
        "step 4": "fail",
        "step 2": "pass",
        "step 3": "fail",
    }
    assert "all 2 rows are wrong" in found.result.failure
