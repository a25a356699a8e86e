"""NumPy models of the attention kernels that round where the kernels round; see `dispatch.model_of`."""

from fattn_probe.launch.constants import constants_of
from fattn_probe.truth.rounding_model.dispatch import by_row, has_model, model_of
from fattn_probe.truth.rounding_model.functions import MEASURED_ARCHS

__all__ = ["MEASURED_ARCHS", "by_row", "constants_of", "has_model", "model_of"]
