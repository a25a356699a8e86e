"""The roofline of a GPU, and the position of a kernel on it (Williams, Waterman, Patterson 2009)."""

import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Literal

import yaml

from fattn_probe.cases.device import Device
from fattn_probe.llama.launch.record import LaunchRecord


@dataclass(frozen=True)
class Roof:
    """The peaks of a GPU: operations per second, and bytes per second to and from its memory."""

    flops: float
    bandwidth: float

    @property
    def ridge(self) -> float:
        """The operations per byte above which arithmetic is the limit."""
        return self.flops / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """The highest number of operations per second at this many operations per byte."""
        return min(self.flops, intensity * self.bandwidth)

    def bound(self, intensity: float) -> Literal["memory", "arithmetic"]:
        """The resource that limits a kernel with this many operations per byte."""
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

    def share(self, roof: Roof) -> float | None:
        """The fraction of the roofline that the kernel reaches; None if its speed was not measured."""
        return None if self.achieved is None else self.achieved / roof.attainable(self.intensity)

    def least_seconds(self, roof: Roof) -> float:
        """The shortest time that the roofline allows."""
        return max(self.flops / roof.flops, self.bytes / roof.bandwidth)


@cache
def peaks() -> MappingProxyType[str, dict[str, float]]:
    """The known peaks of GPUs by id."""
    text = (files("fattn_probe.lab.profile") / "peaks.yaml").read_text()
    return MappingProxyType(yaml.safe_load(text))


def roof_of(device: Device, *, tensor: bool) -> Roof | None:
    """The roofline of a GPU at its boost clock: of its tensor cores, or of float32; None if its peaks are unknown."""
    known = peaks().get(device.id)
    rate = known["tensor" if tensor and known["tensor"] else "float32"] if known else 0
    if known is None or not device.clockRate:
        return None
    return Roof(rate * device.multiProcessorCount * device.clockRate * 1e3, known["bandwidth"] * 1e9)


REGISTERS_AT_ONCE = 256  # allocated to a warp
SHARED_AT_ONCE = {6: 256, 7: 256}  # bytes, by major compute capability
SHARED_UNIT = 128  # for newer GPUs
PARTITIONS = 4  # per SM, each with its registers


@dataclass(frozen=True)
class Occupancy:
    """The largest number of blocks on an SM under each limit, and the warps of a block and of an SM."""

    limits: dict[str, int]
    warps: int
    most_warps: int

    @property
    def blocks(self) -> int:
        """Blocks that fit on an SM."""
        return min(self.limits.values())

    @property
    def share(self) -> float:
        """The share of an SM's warp slots in use."""
        return self.blocks * self.warps / self.most_warps

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The limits that allow no more blocks."""
        return tuple(name for name, blocks in self.limits.items() if blocks == self.blocks)


def occupancy(launch: LaunchRecord, device: Device) -> Occupancy:
    """The occupancy of a launch, computed as in NVIDIA's cuda_occupancy.h."""
    warps = -(-math.prod(launch.block) // device.warpSize)
    limits = {
        "warps": device.maxThreadsPerMultiProcessor // device.warpSize // warps,
        "blocks": device.maxBlocksPerMultiProcessor,
    }
    used = launch.shared + (launch.static_shared or 0) + device.reservedSharedMemPerBlock
    if size := rounded(used, SHARED_AT_ONCE.get(device.major, SHARED_UNIT)):
        limits["shared memory"] = device.sharedMemPerMultiprocessor // size
    if launch.regs:
        of_a_warp = rounded(launch.regs * device.warpSize, REGISTERS_AT_ONCE)
        in_a_partition = device.regsPerMultiprocessor // PARTITIONS // of_a_warp
        limits["registers"] = in_a_partition * PARTITIONS // warps
    return Occupancy(limits, warps, device.maxThreadsPerMultiProcessor // device.warpSize)


def rounded(value: int, unit: int) -> int:
    """Round up to a multiple of `unit`."""
    return -(-value // unit) * unit
