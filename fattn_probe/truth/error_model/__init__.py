"""The expected error of a correct kernel, from its arithmetic, its launch and the data."""

from fattn_probe.truth.error_model.predict import LargeValuesError, predict, predict_kernel, predict_rows
from fattn_probe.truth.error_model.prediction import Prediction
from fattn_probe.truth.error_model.warning import accuracy_warning

__all__ = ["LargeValuesError", "Prediction", "accuracy_warning", "predict", "predict_kernel", "predict_rows"]
