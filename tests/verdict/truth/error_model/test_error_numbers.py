"""The predictions of ops that together use every part of the error model: they change only if that is meant.

Logits are exact in float32, whatever the order in which BLAS adds (`recorded`), but exponentials differ in their last
bit. What is rounding noise beside the largest of its field, or a sum of values that cancel, differs by any factor.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.verdict.truth.error_model.recorded import CASES, PARTS, RECORDED, numbers_of, numbers_of_part, predictions

KEPT = json.loads(RECORDED.read_text())
SHARES = ("loss_logits", "loss_weights", "loss_sums", "loss_sink", "stuck", "unsampled_loss")
LEAST = dict.fromkeys(SHARES, 1e-9) | {"loss_rounding": 1e-6, "row_mean_error": 1e-6, "floor": 1e-45}
"""Differences that are nothing: in shares of V's mean; and where a last bit decides which way a weight is rounded."""


NEAR = 2e-4
WIDER = {"mma, stream-K": 2e-3, "tile in f16, softcap": 2e-3, "mma, one weight": 2e-2}
WIDER |= {"mma, softcap of a converted K": 1e-2}
"""Cases in which the last bit of a tanh or of a weight decides about more."""


@pytest.mark.parametrize("name", CASES)
def test_a_prediction_is_what_it_was(name):
    near = WIDER.get(name, NEAR)
    for label, prediction in predictions(name):
        for field, values in numbers_of(prediction).items():
            kept, least = KEPT[label][field], LEAST.get(field, 1e-37)
            of_each = [max(least, 1e-9 * kept[-1])] * len(kept)
            of_each[2] = max(least, 3 * near * kept[-1])  # the sum
            assert values == [
                pytest.approx(was, rel=near, abs=most) for was, most in zip(kept, of_each, strict=True)
            ], f"{label}: {field}"


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_the_model_is_what_it_was(part):
    for name, fields in numbers_of_part(part).items():
        for field, values in fields.items():
            kept = KEPT[part][name][field]
            assert values == pytest.approx(kept, rel=1e-4, abs=1e-7 * np.abs(kept).max()), (name, field)


def test_a_prediction_is_what_it_was_where_blas_adds_in_another_order():
    """It failed on a machine with AVX-512, and OpenBLAS's kernels for an old processor show the same."""
    words = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "not another_order")
    environment = os.environ | {"OPENBLAS_CORETYPE": "Prescott"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
