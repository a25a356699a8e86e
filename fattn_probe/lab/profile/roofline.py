"""The roofline of a GPU, and the position of a kernel on it (Williams, Waterman, Patterson 2009)."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Literal

import yaml

from fattn_probe.cases.device import Device

PEAKS = "peaks.yaml"


@dataclass(frozen=True)
class Roof:
    """The peaks of a GPU: operations per second, and bytes per second from and to its memory."""

    flops: float
    bandwidth: float

    @property
    def ridge(self) -> float:
        """The number of operations per byte above which arithmetic is the limit."""
        return self.flops / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """The highest operations per second with this many operations per byte."""
        return min(self.flops, intensity * self.bandwidth)

    def bound(self, intensity: float) -> Literal["memory", "arithmetic"]:
        """The limit of a kernel with this many operations per byte."""
        return "memory" if intensity < self.ridge else "arithmetic"


@dataclass(frozen=True)
class Point:
    """A kernel on a roofline: its operations, the bytes that it moved, and its seconds if they were measured."""

    label: str
    flops: int
    bytes: int
    seconds: float | None = None

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes

    @property
    def achieved(self) -> float | None:
        """Operations per second."""
        return self.flops / self.seconds if self.seconds else None

    def least_seconds(self, roof: Roof) -> float:
        """The time that the roofline allows."""
        return max(self.flops / roof.flops, self.bytes / roof.bandwidth)


@cache
def peaks() -> MappingProxyType[str, dict[str, float]]:
    """The known peaks of GPUs by id."""
    text = (files("fattn_probe.lab.profile") / PEAKS).read_text()
    return MappingProxyType(yaml.safe_load(text))


def roof_of(device: Device, *, tensor: bool) -> Roof | None:
    """The roofline of a GPU at its boost clock: of its tensor cores, or of float32; None if its peaks are unknown."""
    known = peaks().get(device.id)
    rate = known["tensor" if tensor and known["tensor"] else "float32"] if known else 0
    if known is None or not device.clockRate:
        return None
    return Roof(rate * device.multiProcessorCount * device.clockRate * 1e3, known["bandwidth"] * 1e9)
