"""The attention kernel in TileLang: lowered to CUDA, and run on a GPU, simulated or real."""

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Device, Target
from fattn_probe.cases.op import Sizes
from fattn_probe.lab.kernels.contender import How
from fattn_probe.lab.kernels.extras import Arrays, Attended, load, sizes_of
from fattn_probe.lab.kernels.launcher import LoweredKernel, run_lowered
from fattn_probe.lab.profile.command import device_of

EXTRA = "tilelang"
ARCH = 80
"""Newer architectures use TMA and WGMMA, which are not simulated; kernels for this one run on these too."""


@dataclass(frozen=True)
class TileLangTiling:
    """Queries (`rows`) and KV rows (`columns`) of a tile, stages of the ring buffer of K and V, threads of a block."""

    rows: int = 64
    columns: int = 64
    stages: int = 2
    threads: int = 128

    def shared_bytes(self, sizes: Sizes) -> int:
        """The shared memory of Q, K and V."""
        return 2 * (self.rows * sizes.hsk + max(self.stages, 1) * self.columns * (sizes.hsk + sizes.hsv))


TILINGS = (
    TileLangTiling(),
    TileLangTiling(stages=1),
    TileLangTiling(columns=32, stages=1),
    TileLangTiling(rows=32, columns=32, stages=1, threads=64),
)


def tiling_for(sizes: Sizes, shared: int, *, causal: bool) -> TileLangTiling:
    """The first tiling whose tiles fit into `shared` bytes; InputError if none does.

    TileLang 0.1.15 does not lower a ring buffer of two stages in a loop whose length depends on the block, as in a
    causal kernel (tile-ai/TileOPs issue 1852: "Downcast from tirx.Sub to ir.IntImm failed").
    """
    fit = [it for it in TILINGS if it.shared_bytes(sizes) <= shared and not (causal and it.stages > 1)]
    if not fit:
        raise InputError(f"head sizes {sizes.hsk} and {sizes.hsv} do not fit into {shared} bytes of shared memory")
    return fit[0]


def written(sizes: Sizes, scale: float, tiling: TileLangTiling, *, causal: bool, masked: bool) -> Any:  # noqa: ANN401 (TileLang's)
    """The kernel for these sizes in TileLang. InputError if a head size is not a multiple of 16."""
    if sizes.hsk % 16 or sizes.hsv % 16:
        raise InputError(f"head sizes {sizes.hsk} and {sizes.hsv}: the TileLang kernel needs multiples of 16")
    kernel = load("fattn_probe.lab.kernels.tilelang_kernel", EXTRA)
    return kernel.attention(sizes, tiling, scale, causal=causal, masked=masked)


def lower(sizes: Sizes, scale: float, tiling: TileLangTiling, *, causal: bool, masked: bool) -> LoweredKernel:
    """The CUDA of the kernel for these sizes, without a GPU; this takes a few seconds.

    InputError if TileLang is not installed, or if a head size is not a multiple of 16.
    """
    tilelang = load("tilelang", EXTRA)
    target = tilelang.tvm.target.Target({"kind": "cuda", "arch": f"sm_{ARCH}"})
    with target, contextlib.redirect_stdout(io.StringIO()):
        made = tilelang.lower(written(sizes, scale, tiling, causal=causal, masked=masked), target=target)
    ((_, device),) = made.device_mod.functions.items()
    return LoweredKernel(
        source=str(made.kernel_source),
        name=str(device.attrs["global_symbol"]),
        grid=extent(device, "blockIdx"),
        block=extent(device, "threadIdx"),
        shared_bytes=int(device.attrs.get("dyn_shared_memory_buf", 0)),
        arguments=tuple(str(parameter.name) for parameter in device.params),
    )


def extent(device: object, name: str) -> tuple[int, int, int]:
    """The sizes of a lowered kernel's grid (`blockIdx`) or block (`threadIdx`)."""
    sizes = device.attrs["thread_extent"]  # type: ignore[attr-defined]
    x, y, z = (int(sizes[f"{name}.{axis}"]) if f"{name}.{axis}" in sizes else 1 for axis in "xyz")
    return x, y, z


def includes() -> tuple[Path, ...]:
    """The folders of the headers that TileLang's CUDA includes: its templates and its copy of CUTLASS."""
    root = Path(str(load("tilelang", EXTRA).__file__)).parent
    return root / "src", root / "3rdparty/cutlass/include"


def attend(asked: Arrays, *, target: Target, how: How) -> Attended:
    """Output and log-sum-exp of the kernel, in f32; the same CUDA runs on a simulated GPU and, by nvcc, on a real one.

    InputError for a GPU before Ampere, and as from `lower`; ComparisonError for a finding of the simulator.
    """
    sizes, tiling = fitted(asked, target)
    lowered = lower(sizes, asked.scale, tiling, causal=asked.causal, masked=asked.mask is not None)
    inputs = {"Q": asked.q, "K": asked.k, "V": asked.v} | ({} if asked.mask is None else {"M": asked.mask})
    shape = (sizes.n_seq, sizes.n_head, sizes.n_q)
    outputs = {"O": (np.dtype(np.float32), (*shape, sizes.hsv)), "L": (np.dtype(np.float32), shape)}
    made, seconds = run_lowered(lowered, inputs, outputs, includes=includes(), target=target, how=how)
    return Attended(made["O"], made["L"].astype(np.float32, copy=False), seconds)


def fitted(asked: Arrays, target: Target) -> tuple[Sizes, TileLangTiling]:
    """The sizes of an op and its tiling on a GPU; InputError as from `sizes_of`, `ampere` and `tiling_for`."""
    sizes, device = sizes_of(asked), ampere(target)
    return sizes, tiling_for(sizes, device.sharedMemPerBlockOptin, causal=asked.causal)


def ampere(target: Target) -> Device:
    """The figures of a target's GPU; InputError if it is not an NVIDIA GPU from Ampere on."""
    device = None if target.engine == "cpu" else device_of(target)
    if device is None or device.gfx or int(device.arch) < ARCH:
        raise InputError(f"{target}: the TileLang kernel needs an NVIDIA GPU, Ampere or newer")
    return device
