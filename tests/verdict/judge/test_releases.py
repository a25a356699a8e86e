"""The code of every release on the index is that of the defects that known-defects.yaml says it has."""

import pytest

from fattn_probe.llama.source import resolve
from fattn_probe.llama.source.spec import PINS, releases
from fattn_probe.verdict.judge.known import defects
from fattn_probe.verdict.judge.origin import Code, all_hold

pytestmark = pytest.mark.network


def listed(release):
    pinned = (release.project, release.version) in PINS
    return pytest.param(release, id=release.source, marks=() if pinned else pytest.mark.night)


@pytest.mark.parametrize("release", [listed(release) for release in releases()])
def test_a_release_can_be_probed_and_has_the_defects_of_its_build(release):
    tree = resolve(release.source)
    assert tree.build_number == str(release.build or "?")
    for defect in defects().values():
        found = {all_hold((*defect.code, *signs.code), Code(tree.root)) for signs in defect.signs}
        assert len(found) == 1 and None not in found
        if release.build is not None:
            assert found == {defect.releases.holds(release.build)}
