"""The causes of an expected error, in words."""

import numpy as np

from fattn_probe.op import Op
from fattn_probe.truth.error_model.block import Rows
from fattn_probe.truth.error_model.kernel import Kernel
from fattn_probe.truth.error_model.rounding import HALF

CAUSES = {
    "logits": "errors of Q and K in the logits",
    "weights": "P rounded to f16",
    "sums": "rounding of the accumulators",
    "values": "V converted to f16",
    "loss": "increments lost below half an ulp",
}


def why(op: Op, kernel: Kernel, rows: Rows, causes: dict[str, float]) -> str:
    """One sentence: kernel, accumulator, roundings, independent sums, and the largest cause."""
    number = "f16" if kernel.accumulator is HALF else "f32"
    most = max(causes, key=lambda name: causes[name])
    share = 100 * causes[most] / (sum(causes.values()) or 1.0)
    return (
        f"{kernel.name} sums P.V in {number}, {kernel.split.group} product{'s' * (kernel.split.group > 1)} a rounding: "
        f"{np.mean(rows.roundings):.0f} roundings in each of {kernel.split.accumulators} accumulators a block; "
        f"Q in {kernel.q}, P in {'f16' if kernel.weights is HALF else 'f32'}"
        f"{_conversions(op, kernel)}; {share:.0f} % of the expected square error is {CAUSES[most]}"
    )


def _conversions(op: Op, kernel: Kernel) -> str:
    names = {"K": (kernel.converts_K, op.type_K), "V": (kernel.converts_V, op.type_V)}
    done = [f"{name} ({type_})" for name, (converts, type_) in names.items() if converts and type_ != "f16"]
    return f", {' and '.join(done)} converted to f16" if done else ""
