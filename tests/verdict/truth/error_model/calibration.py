"""Random cases with ordinary data, and runs held against their predictions, as numbers that are kept."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fattn_probe.cases.device import load_devices, parse_targets
from fattn_probe.cases.scenario import Case
from fattn_probe.lab.fuzz.run import Lane, lanes
from fattn_probe.lab.fuzz.scenarios import SOFTCAP, Settings
from fattn_probe.llama.launch.architecture import arch_number
from fattn_probe.llama.launch.families import BY_KERNEL
from fattn_probe.machine.run.capture import Capture
from fattn_probe.machine.run.session import Session
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


DEVICES = ("sim:h200", "sim:rtx4070", "sim:rtx3090ti", "sim:rtx2060", "sim:v100", "sim:gtx1060")
ORDINARY = frozenset({"uniform", "normal", "fa3_outliers", "large_logits"})
WIDEST = 8.0
NEW_KERNELS = 0.3
AT_ONCE = 30


def random_cases(
    session: Session, seed: int, count: int, devices: tuple[str, ...] = DEVICES
) -> Iterator[tuple[Case, str]]:
    """(case, target) pairs, as many for each architecture, the same for the same arguments; their kernels are built.

    They are those of `fattn-probe fuzz`, without the regions in which errors are unusual.
    """
    found = lanes(session, parse_targets(",".join(devices), load_devices()), seed, NEW_KERNELS)
    for number, lane in enumerate(found):
        yield from of_lane(lane, (number + 1) * count // len(found) - number * count // len(found))


def of_lane(lane: Lane, count: int) -> Iterator[tuple[Case, str]]:
    """So many cases of one lane."""
    while count:
        for drawn in lane.batch(AT_ONCE)[0]:
            if count and drawn.kernels and ordinary(drawn.settings):
                count -= 1
                yield drawn.case, str(drawn.target)


def ordinary(settings: Settings) -> bool:
    """Whether numbers are like those of a model, and no known defect of llama.cpp is to be expected."""
    data = settings.get("data", {}).values()
    layout, mask = settings.get("layout", {}), settings.get("mask", {"kind": "none"})["kind"]
    return (
        all(one["kind"] in ORDINARY and one.get("scale", 1) <= WIDEST for one in data)
        and not any(view.get("pad", 0) % 8 for view in layout.values())
        and layout.get("mask", {}).get("per_sequence", True)
        and ("logit_softcap" not in settings or settings["hsk"] in SOFTCAP)
        and settings.get("n_seq", 1) * settings["n_q"] < 1024
        and mask not in ("masked_rows", "blocks")
    )
