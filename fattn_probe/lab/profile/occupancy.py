"""The number of blocks of a kernel that fit on an SM, and the limit."""

import math
from dataclasses import dataclass

from fattn_probe.cases.device import Device
from fattn_probe.llama.launch.record import LaunchRecord

REGISTERS_AT_ONCE = 256  # allocated to a warp
SHARED_AT_ONCE = {6: 256, 7: 256}  # bytes, by major compute capability
SHARED_UNIT = 128  # for newer GPUs
PARTITIONS = 4  # per SM, each with its registers


@dataclass(frozen=True)
class Occupancy:
    """The largest number of blocks on an SM by each limit, and the warps of a block and of an SM."""

    limits: dict[str, int]
    warps: int
    most_warps: int

    @property
    def blocks(self) -> int:
        """Blocks that fit on an SM."""
        return min(self.limits.values())

    @property
    def share(self) -> float:
        """The share of an SM's warps in use."""
        return self.blocks * self.warps / self.most_warps

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The limits that allow no more blocks."""
        return tuple(name for name, blocks in self.limits.items() if blocks == self.blocks)


def occupancy(launch: LaunchRecord, device: Device) -> Occupancy:
    """The occupancy of a launch, by the arithmetic of NVIDIA's cuda_occupancy.h."""
    warps = -(-math.prod(launch.block) // device.warpSize)
    limits = {
        "warps": device.maxThreadsPerMultiProcessor // device.warpSize // warps,
        "blocks": device.maxBlocksPerMultiProcessor,
    }
    if size := shared_memory(launch, device):
        limits["shared memory"] = device.sharedMemPerMultiprocessor // size
    if launch.regs:
        of_a_warp = rounded(launch.regs * device.warpSize, REGISTERS_AT_ONCE)
        in_a_partition = device.regsPerMultiprocessor // PARTITIONS // of_a_warp
        limits["registers"] = in_a_partition * PARTITIONS // warps
    return Occupancy(limits, warps, device.maxThreadsPerMultiProcessor // device.warpSize)


def shared_memory(launch: LaunchRecord, device: Device) -> int:
    """Bytes of the SM's shared memory that a block uses."""
    used = launch.shared + (launch.static_shared or 0) + device.reservedSharedMemPerBlock
    return rounded(used, SHARED_AT_ONCE.get(device.major, SHARED_UNIT))


def rounded(value: int, unit: int) -> int:
    """Round up to a multiple of `unit`."""
    return -(-value // unit) * unit
