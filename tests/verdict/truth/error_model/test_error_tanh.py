"""The error of tanh.approx, from the table of its results measured on Hopper."""

import json
from importlib.resources import files

import numpy as np
import pytest

from fattn_probe.verdict.truth.error_model.hyperbolic import tanh_error

TABLE = json.loads((files("fattn_probe.verdict.truth.error_model") / "tanh.json").read_text())
"""In units of 1e-10; the first row is of x from 2^-8 on, each of 64 parts of a binade."""


@pytest.mark.parametrize("binade", [0, 1, 4, len(TABLE) - 1])
@pytest.mark.parametrize("part", [0, 1, 31, 63])
def test_each_part_of_a_binade_has_its_mean_error(binade, part):
    x = np.float32(2.0 ** (binade - 8) * (1 + (part + 0.5) / 64))
    expected = TABLE[binade][part] * 1e-10
    assert tanh_error(np.array([x, -x])) == pytest.approx([expected, -expected])


def test_of_a_small_argument_the_result_is_the_argument():
    x = np.array([2.0**-9, -(2.0**-9), np.nextafter(np.float32(2.0**-8), np.float32(0)), 0.0], np.float32)
    assert tanh_error(x) == pytest.approx(x - np.tanh(x.astype(np.float64)), rel=1e-4)


def test_the_ends_of_a_binade_belong_to_the_one_that_begins_there():
    at, below = np.float32(2.0**-7), np.nextafter(np.float32(2.0**-7), np.float32(0))
    assert tanh_error(np.array([at, below])) == pytest.approx([TABLE[1][0] * 1e-10, TABLE[0][63] * 1e-10])
    first = np.float32(2.0**-8)
    assert tanh_error(np.array([first])) == pytest.approx([TABLE[0][0] * 1e-10])


def test_a_large_argument_has_no_error():
    assert tanh_error(np.array([2.0 ** (len(TABLE) - 8), 1e6, -1e6], np.float32)).tolist() == [0, 0, 0]
