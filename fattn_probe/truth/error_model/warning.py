"""Warnings about correct kernels whose expected error is large."""

import numpy as np

from fattn_probe.truth.error_model.prediction import Prediction

WORTH_A_WARNING = 2e-3
"""Bias that is worth a warning, as a share of the outputs' size: four times the unit roundoff of f16."""


def accuracy_warning(prediction: Prediction) -> str:
    """The accuracy warning for a kernel that works as designed; empty if there is none.

    It warns of a large systematic error, which grows with the number of KV rows, is the same in every channel and does
    not average out, and of accumulators that may overflow f16. It does not warn of random errors.
    """
    words = []
    if abs(prediction.bias) >= WORTH_A_WARNING:
        words.append(f"mean error {100 * prediction.bias:+.2g} %: {_reason(prediction)}")
    if prediction.may_overflow.any():
        rows = int(prediction.may_overflow.sum())
        words.append(
            f"{rows} of {prediction.may_overflow.size} rows may exceed 65504, the largest f16, in an accumulator"
        )
    return "; ".join(words)


def _reason(prediction: Prediction) -> str:
    rows = prediction.rows
    if np.abs(rows.loss_sums).mean() >= np.abs(rows.loss_weights).mean():
        return "increments below half an ulp of the f16 accumulator are lost"
    return "weights 15.2 and more below the maximum are zero in f16"
