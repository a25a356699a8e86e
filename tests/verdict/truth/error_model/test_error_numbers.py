"""The predictions of ops that together use every part of the error model: they change only if that is meant.

Logits are sums in float32 whose order BLAS chooses. So a prediction differs by up to 1 % from machine to machine.
"""

import json

import pytest

from tests.verdict.truth.error_model.recorded import CASES, RECORDED, numbers_of, predictions

KEPT = json.loads(RECORDED.read_text())
SHARES = {"loss_logits", "loss_weights", "loss_sums", "loss_sink", "stuck", "unsampled_loss", "bias", "row_mean_error"}
"""Fields beside which a difference of 1e-9 is nothing: shares of V's mean."""


@pytest.mark.parametrize("name", CASES)
def test_a_prediction_is_what_it_was(name):
    for label, prediction in predictions(name):
        for field, values in numbers_of(prediction).items():
            least = 1e-9 if field in SHARES else 1e-37
            assert values == pytest.approx(KEPT[label][field], rel=0.02, abs=least), f"{label}: {field}"
