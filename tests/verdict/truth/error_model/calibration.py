"""One run held against its prediction, as numbers that are kept."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fattn_probe.cases.scenario import Case
from fattn_probe.llama.launch.architecture import arch_number
from fattn_probe.llama.launch.families import BY_KERNEL
from fattn_probe.machine.run.capture import Capture
from fattn_probe.verdict.truth.reference.adapter import operand_values, reference_of
from tests.made import target
from tests.verdict.truth.models import predicted


@dataclass(frozen=True)
class Measured:
    """Measured and predicted errors, absolute; `size` is the mean |exact output|.

    `worst` is the largest error/bound of an element; `row` the largest RMSE/predicted of a row.
    """

    name: str
    device: str
    kernel: str
    n_kv: int
    rmse: float
    predicted: float
    mean_error: float
    predicted_mean_error: float
    size: float
    worst: float
    row: float

    @property
    def ratio(self) -> float:
        """Measured by predicted RMSE."""
        return self.rmse / self.predicted

    def to_json(self) -> dict[str, Any]:
        """With floats at four digits."""
        return {
            key: float(f"{value:.3e}") if isinstance(value, float) else value for key, value in asdict(self).items()
        }


def held(case: Case, capture: Capture, device: str) -> Measured:
    """Measure a capture, without fully masked rows (0/0 on CUDA); every case here has a known kernel."""
    inputs = dict(capture.inputs)
    reference = reference_of(case.op, inputs)
    prediction = predicted(
        case.op, operand_values(case.op, inputs), capture.launches, arch_number(target(device).device.arch)
    )
    assert prediction is not None
    rows = np.isfinite(capture.dst).all(axis=3)
    error = (capture.dst - reference)[rows]
    expected = prediction.row_rmse[rows]
    sampled = prediction.sampled[rows]
    by_row = np.sqrt(np.square(error).mean(axis=1)) / np.maximum(expected, 1e-300)
    kernel = next(launch for launch in capture.launches if launch.kernel in BY_KERNEL)
    return Measured(
        name=case.name,
        device=device,
        kernel=f"{kernel.kernel}<{','.join(kernel.values[:5])}>",
        n_kv=case.op.sizes.n_kv,
        rmse=float(np.sqrt(np.square(error).mean())),
        predicted=float(np.sqrt(np.square(expected).mean())),
        mean_error=float(error.mean()),
        predicted_mean_error=float(prediction.row_mean_error[rows].mean()),
        size=float(np.abs(reference[rows]).mean()),
        worst=float((np.abs(error) / np.maximum(prediction.bound[rows], 1e-300)).max()),
        row=float(by_row[sampled].max()),
    )
