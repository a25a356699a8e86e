"""The array types that all rooms share, named after their elements, and the NaN-safe comparison with a limit."""

from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Indices = npt.NDArray[np.intp]
Halves = npt.NDArray[np.float16]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating[Any]]
Numbers = npt.NDArray[Any]


def above(values: npt.ArrayLike, most: npt.ArrayLike) -> Bools:
    """Whether each value is above its limit; NaN on either side counts as above."""
    return np.asarray(~(np.asarray(values) <= most))
