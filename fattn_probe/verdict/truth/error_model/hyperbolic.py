"""The measured error of tanh.approx.f32, a deterministic function of its argument."""

import json
from functools import cache
from importlib.resources import files

import numpy as np

from fattn_probe.base.arrays import F32

LEAST = -8
"""Exponent of the table's first binade; below it, the result is x."""


@cache
def _table() -> F32:
    """Mean errors (binades, parts of a binade) from the instruction's results on Hopper, stored in units of 1e-10."""
    text = files("fattn_probe.verdict.truth.error_model").joinpath("tanh.json").read_text()
    return np.array(json.loads(text), np.float32) * np.float32(1e-10)


def tanh_error(x: F32) -> F32:
    """tanh.approx(x) - tanh(x), as a mean over 1/64 of a binade."""
    table = _table()
    significand, exponent = np.frexp(np.abs(x))
    binade = exponent - 1 - LEAST
    part = ((binade + 2 * significand - 1) * table.shape[1]).astype(np.intp)
    error = np.where(binade < len(table), table.take(part, mode="clip") * np.sign(x), 0)
    return np.asarray(np.where(binade < 0, x**3 / 3, error).astype(np.float32))
