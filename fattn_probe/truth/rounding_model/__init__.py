"""Models that round where the kernels round, in NumPy, written from their arithmetic: see `dispatch.model_of`."""

from fattn_probe.launch.constants import constants_of
from fattn_probe.truth.rounding_model.dispatch import by_row, model_of

__all__ = ["by_row", "constants_of", "model_of"]
