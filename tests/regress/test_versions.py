import pytest

from fattn_probe.device.target import Target
from fattn_probe.errors import InputError
from fattn_probe.regress import versions
from fattn_probe.regress.records import Result
from tests.stand_in import StandIn

RELEASES = [f"pypi:x=={number}" for number in range(20)]


H200 = Target("sim")


def session_of(source):
    """The source itself: the `result_of` of these tests takes it for a session."""
    return source


class Case(StandIn):
    name = "c"


@pytest.fixture
def first_bad(monkeypatch):
    tried = []

    def fake(bad):
        def result_of(source, case, target):
            tried.append(source)
            wrong = RELEASES.index(source) >= bad
            return Result(case.name, "d", "fail" if wrong else "pass", failure="wrong" if wrong else "")

        monkeypatch.setattr(versions, "result_of", result_of)
        return tried

    return fake


@pytest.mark.parametrize("bad", [1, 2, 7, 10, 18, 19])
def test_the_first_bad_release_is_found(first_bad, bad):
    tried = first_bad(bad)
    found = versions.bisect(session_of, RELEASES, Case(), H200)
    assert found.bad == RELEASES[bad]
    assert found.result.failure == "wrong"
    assert len(tried) == len(set(tried)) <= 7


def test_ends_that_are_not_good_and_bad(first_bad):
    first_bad(0)
    with pytest.raises(InputError, match="the good end pypi:x==0 does not pass: c is fail"):
        versions.bisect(session_of, RELEASES, Case(), H200)
    first_bad(99)
    with pytest.raises(InputError, match="the bad end pypi:x==19 does not fail: c passes"):
        versions.bisect(session_of, RELEASES, Case(), H200)


def test_releases_between_two():
    assert versions.between(RELEASES, RELEASES[3], RELEASES[6]) == RELEASES[3:7]
    with pytest.raises(InputError, match="does not come before"):
        versions.between(RELEASES, RELEASES[6], RELEASES[3])
    with pytest.raises(InputError, match="is not a known release"):
        versions.between(RELEASES, "pypi:x==77", RELEASES[3])


def test_two_versions_side_by_side(first_bad):
    first_bad(5)
    found = versions.diff(session_of, (RELEASES[1], RELEASES[9]), [Case()], H200)
    assert [change.kind for change in found.changes] == ["new failure"]
