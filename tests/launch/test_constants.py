"""What the models take from a source."""

import numpy as np
import pytest

from fattn_probe.launch.constants import SHIPPED, constants_of
from fattn_probe.source import DEFAULT_SOURCE, resolve

pytestmark = pytest.mark.network


def test_the_shipped_constants_are_those_of_the_default_source():
    assert constants_of(resolve(DEFAULT_SOURCE)) == SHIPPED


def test_the_first_era_shifts_the_maximum_less():
    assert constants_of(resolve("pypi:xllamacpp==0.2.8")).max_offset == np.float32(0.6931)
