"""The suites that come with fattn-probe."""

import pytest

from fattn_probe.regress.suite import cases_of, load_suite
from fattn_probe.shipped import find


@pytest.mark.parametrize("name", ["quick", "nightly"])
def test_a_shipped_suite_has_cases(name):
    path = find("suite", name)
    assert len(cases_of(load_suite(path), path.parent)) > 300
