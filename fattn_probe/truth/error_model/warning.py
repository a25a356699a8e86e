"""When a correct kernel is nevertheless bad, and why."""

import numpy as np

from fattn_probe.truth.error_model.prediction import Prediction

WORTH_A_WARNING = 2e-3
"""Share of the outputs' size that is worth a warning: four times the unit roundoff of f16, all of one sign."""


def accuracy_warning(prediction: Prediction) -> str:
    """What is wrong with a design even where it works as designed, in words; empty if nothing is.

    A systematic error grows with the number of KV rows and is the same in every channel, so that nothing after it takes
    it back: it is warned of, the random one is not. What f16 cannot hold at all is.
    """
    words = []
    if abs(prediction.bias) >= WORTH_A_WARNING:
        words.append(f"mean error {100 * prediction.bias:+.2g} %: {_reason(prediction)}")
    if prediction.may_overflow.any():
        rows = int(prediction.may_overflow.sum())
        words.append(
            f"{rows} of {prediction.may_overflow.size} rows may exceed 65504, the end of f16, in an accumulator"
        )
    return "; ".join(words)


def _reason(prediction: Prediction) -> str:
    rows = prediction.rows
    if np.abs(rows.loss_sums).mean() >= np.abs(rows.loss_weights).mean():
        return "increments below half an ulp of the f16 accumulator are lost"
    return "weights 15.2 and more below the maximum are zero in f16"
