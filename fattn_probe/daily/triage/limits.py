"""The limits for the difference between a device and the CPU in an op other than attention.

Both compute the op on the same inputs, so only two things differ: the order and the functions of the f32 arithmetic,
and the final rounding to the type of the output. The limit for the first is that of upstream for these ops on random
data (`max_nmse_err` of tests/test-backend-ops.cpp, b11549), for the second, one step of the type in every element. A
wrong index or sign gives an NMSE around 1, far above both.
"""

import math

from fattn_probe.daily.models.node import Node, TensorDifference
from fattn_probe.machine.run.outcome import Failed, Fault

DEFAULT = 1e-7
"""`test_case::max_nmse_err`."""
BY_OP = {
    "SOFT_MAX": 1e-6,
    "MUL_MAT": 5e-4,
    "MUL_MAT_ID": 5e-4,
    "OUT_PROD": 5e-4,
    "SSM_SCAN": 2e-7,
    "RWKV_WKV7": 5e-3,
    "CONV_2D": 5e-4,
    "CONV_TRANSPOSE_2D": 5e-4,
    "UNARY": 2**-20,
    "GLU": 2**-20,
}
"""The ops with larger limits upstream. UNARY and GLU: a step of f16, because the CPU uses an f16 table for gelu."""
LARGE_POSITIONS, ROPE_AT_LARGE_POSITIONS = 8192, 1e-5
"""Upstream's bound for ROPE from this position on, because the error of an angle grows with the position."""
MANTISSA = {"f16": 10, "bf16": 7}
"""Bits after the point: one step is at most 2^-bits of a value."""
LEVELS = {"q8_0": 127, "q5_1": 16, "q5_0": 16, "q4_1": 8, "q4_0": 8, "iq4_nl": 8}
"""Steps between 0 and the largest value of a block."""
CREST = 3.0
"""The largest of a block of 32 values / their root mean square; 2.1 on average for a normal distribution."""


def step_nmse(type_: str) -> float:
    """The NMSE of an output in which each element is off by one step of its type; 0 for f32 and integers."""
    if type_ in MANTISSA:
        return math.ldexp(1.0, -2 * MANTISSA[type_])
    return (CREST / LEVELS[type_]) ** 2 if type_ in LEVELS else 0.0


def allowed(node: Node, positions: int = 0) -> float:
    """The largest NMSE of a correct device for an op, in a run with this many positions."""
    arithmetic = BY_OP.get(node.op, DEFAULT)
    if node.op == "ROPE" and positions > LARGE_POSITIONS:
        arithmetic = ROPE_AT_LARGE_POSITIONS
    return arithmetic + step_nmse(node.type)


def is_wrong(node: Node, found: TensorDifference | Fault | Failed, positions: int = 0) -> bool:
    """Whether a device computes an op wrongly, or crashes."""
    if not isinstance(found, TensorDifference):
        return True
    return found.nan > 0 or found.inf > 0 or not found.nmse <= allowed(node, positions)
