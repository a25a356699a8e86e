"""The predictions of ops that together use every part of the error model: they change only if that is meant.

Logits are sums in float32 whose order BLAS chooses. So a prediction differs by up to 1 % from machine to machine, and
what is rounding noise beside the largest of its field, or a sum of values that cancel, by any factor.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.verdict.truth.error_model.recorded import CASES, RECORDED, numbers_of, predictions

KEPT = json.loads(RECORDED.read_text())
SHARES = {"loss_logits", "loss_weights", "loss_sums", "loss_sink", "stuck", "unsampled_loss", "bias", "row_mean_error"}
"""Fields beside which a difference of 1e-9 is nothing: shares of V's mean."""


@pytest.mark.parametrize("name", CASES)
def test_a_prediction_is_what_it_was(name):
    for label, prediction in predictions(name):
        for field, values in numbers_of(prediction).items():
            kept = KEPT[label][field]
            least = max(1e-9 if field in SHARES else 1e-37, 1e-9 * kept[-1])
            near = [pytest.approx(was, rel=0.02, abs=least) for was in kept]
            near[2] = pytest.approx(kept[2], rel=0.02, abs=max(least, 0.05 * kept[-1]))  # the sum
            assert values == near, f"{label}: {field}"


def test_a_prediction_is_what_it_was_where_blas_adds_in_another_order():
    """It failed on a machine with AVX-512, and OpenBLAS's kernels for an old processor show the same."""
    words = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "not another_order")
    environment = os.environ | {"OPENBLAS_CORETYPE": "Prescott"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
