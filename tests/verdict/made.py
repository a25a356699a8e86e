"""What tests of the verdict make: predictions, and a session as far as its build."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from fattn_probe.machine.run.capture import Capture
from fattn_probe.machine.run.session import RunOptions
from fattn_probe.verdict.truth.error_model.prediction import Prediction as RealPrediction
from tests.stand_in import StandIn


@dataclass(frozen=True)
class OneBuild(StandIn):
    """A session as far as the source of its build, b11549."""

    source: str = "pypi:xllamacpp==2026.10.11549"
    build_number: str = "11549"
    options = RunOptions(None)

    def build_for(self, target):
        return SimpleNamespace(manifest=SimpleNamespace(source=self.source, build_number=self.build_number, patches=()))


@dataclass
class Spoilt(StandIn):
    """A session whose outputs `spoil` changes; each case runs once on each target."""

    session: Any
    spoil: Any = None
    known: dict = field(default_factory=dict)

    def __getattr__(self, name):
        return getattr(self.session, name)

    def reordered(self, number):
        return Spoilt(self.session.reordered(number), self.spoil)

    def capture(self, case, inputs, target, part=None):
        key = (case.digest, str(target))
        if key not in self.known:
            self.known[key] = self.session.capture(case, inputs, target)
        found = self.known[key]
        if self.spoil is None or not isinstance(found, Capture):
            return found
        dst = found.dst.copy()
        self.spoil(dst)
        return replace(found, dst=dst)


@dataclass(frozen=True)
class Prediction(StandIn):
    """The numbers of a prediction."""

    row_rmse: np.ndarray
    bound: np.ndarray
    sampled: np.ndarray
    mean_error: float = 0.0
    why: str = "mma-f16 sums P.V in f16"
    lost: str = "increments below half an ulp of the f16 accumulator are lost"
    assumed: str = ""
    common: float | np.ndarray = 0.0
    row_flips: float = 0.0
    known, row_mean_error = property(vars(RealPrediction)["known"].func), 0.0

    @property
    def unsampled_bound(self):
        return self.bound

    @property
    def row_uncertainty(self):
        return self.row_rmse

    def follow(self, dst, reference, rows):
        return False

    @property
    def row_common(self):
        return self.common * self.row_rmse**2 if np.any(self.common) else np.zeros_like(self.row_rmse)


def predicted(shape, rmse=1e-3, bound=None, sampled=True, **more):
    """A prediction with the same RMSE in all rows, and the same bound: eight times it if none is given."""
    bounds = np.full(shape, 8 * rmse if bound is None else bound)
    return Prediction(np.full(shape[:3], rmse), bounds, np.full(shape[:3], sampled), **more)
