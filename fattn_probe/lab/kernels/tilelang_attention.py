"""The attention kernel in TileLang: lowered to CUDA, and run on a GPU, simulated or real."""

import contextlib
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fattn_probe.base.arrays import Numbers
from fattn_probe.base.errors import ComparisonError, InputError, LostError
from fattn_probe.base.files import scratch
from fattn_probe.cases.device import Target
from fattn_probe.cases.op import Sizes
from fattn_probe.lab.kernels.contender import How
from fattn_probe.lab.kernels.extras import Arrays, Attended, device_for, load, seconds_of, sizes_of
from fattn_probe.lab.profile.command import device_of
from fattn_probe.lab.program.build import Program, maker, written
from fattn_probe.lab.program.execute import ProgramSettings, execute
from fattn_probe.machine.run.frames import describe_finding
from fattn_probe.machine.run.outcome import lost_message

Array = tuple[np.dtype[np.generic], tuple[int, ...]]
"""The element type and the shape of an array."""
HEADERS = Path(__file__).parent / "cuda"


@dataclass(frozen=True)
class LoweredKernel:
    """A kernel that a compiler generated as CUDA: its source, and its launch.

    `grid` and `block` are (x, y, z), `shared_bytes` is dynamic shared memory, `arguments` names its pointers, in order.
    """

    source: str
    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[str, ...]


def run_lowered(
    kernel: LoweredKernel,
    inputs: Mapping[str, Numbers],
    outputs: Mapping[str, Array],
    *,
    includes: tuple[Path, ...],
    target: Target,
    how: How,
) -> tuple[dict[str, Numbers], tuple[float, ...]]:
    """The outputs of a kernel, by the names of its arguments, and the seconds of each timed run.

    ComparisonError if the simulator stops the kernel with a finding, LostError if it ends early for another reason.
    """
    arrays = {name: (array.dtype, array.shape) for name, array in inputs.items()} | dict(outputs)
    making = maker(target, "check" if how.check else "release")
    path = written(program_text(kernel, arrays, frozenset(outputs)), kernel.name, ".cu")
    made = replace(making.make(Program(path, (*includes, HEADERS))), source=Path(kernel.name))
    with scratch() as folder:
        for name, array in inputs.items():
            np.ascontiguousarray(array).tofile(folder / name)
        words = (str(folder), *map(str, how.timing_on(target)))
        # This raises an error if the program did not run to completion.
        run = execute(made, target, ProgramSettings(words, how.timeout, keeps_output=True), how.simulation)
        if run.finding is not None:
            raise ComparisonError(describe_finding(run.finding))
        if run.code:
            raise LostError(lost_message("the kernel's program", run.code, run.stderr))
        found = {name: np.fromfile(folder / name, dtype).reshape(shape) for name, (dtype, shape) in outputs.items()}
        return found, tuple(map(float, np.fromfile(folder / "seconds", np.float64)))


def program_text(kernel: LoweredKernel, arrays: Mapping[str, Array], outputs: frozenset[str]) -> str:
    """A program that launches a kernel; its arguments are the folder of the arrays, and the number of runs."""
    sizes = {name: dtype.itemsize * math.prod(shape) for name, (dtype, shape) in arrays.items()}
    described = ", ".join(f'{{"{name}", {sizes[name]}, {str(name in outputs).lower()}}}' for name in kernel.arguments)
    grid, block = (", ".join(map(str, size)) for size in (kernel.grid, kernel.block))
    launch = f"{kernel.name}, dim3({grid}), dim3({block}), {kernel.shared_bytes}"
    return f"""{kernel.source}
#include <run_kernel.h>

int main(int, char **words) {{
    return run_kernel({launch}, words, {{{described}}});
}}
"""


EXTRA = "tilelang"
ARCH = 80
"""On newer architectures TileLang uses TMA and WGMMA, which are not simulated; kernels for this one run there too."""


@dataclass(frozen=True)
class TileLangTiling:
    """Queries (`rows`) and KV rows (`columns`) of a tile, stages of the ring buffer for K and V, threads of a block."""

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
    """The first tiling whose tiles fit into `shared` bytes; InputError if no tiling does.

    TileLang 0.1.15 does not lower a ring buffer of two stages in a loop whose length depends on the block, as in a
    causal kernel (tile-ai/TileOPs issue 1852: "Downcast from tirx.Sub to ir.IntImm failed").
    """
    fit = [it for it in TILINGS if it.shared_bytes(sizes) <= shared and not (causal and it.stages > 1)]
    if not fit:
        raise InputError(f"head sizes {sizes.hsk} and {sizes.hsv} do not fit into {shared} bytes of shared memory")
    return fit[0]


def kernel_for(sizes: Sizes, scale: float, tiling: TileLangTiling, *, causal: bool, masked: bool) -> Any:  # noqa: ANN401 (TileLang's)
    """The kernel for these sizes in TileLang. InputError if a head size is not a multiple of 16."""
    if sizes.hsk % 16 or sizes.hsv % 16:
        raise InputError(f"head sizes {sizes.hsk} and {sizes.hsv}: the TileLang kernel needs multiples of 16")
    kernel = load("fattn_probe.lab.kernels.tilelang_kernel", EXTRA)
    return kernel.attention(sizes, tiling, scale, causal=causal, masked=masked)


def lower(sizes: Sizes, scale: float, tiling: TileLangTiling, *, causal: bool, masked: bool) -> LoweredKernel:
    """The kernel's CUDA source for these sizes, without a GPU; this takes a few seconds.

    InputError if TileLang is not installed, or if a head size is not a multiple of 16.
    """
    tilelang = load("tilelang", EXTRA)
    target = tilelang.tvm.target.Target({"kind": "cuda", "arch": f"sm_{ARCH}"})
    with target, contextlib.redirect_stdout(io.StringIO()):
        made = tilelang.lower(kernel_for(sizes, scale, tiling, causal=causal, masked=masked), target=target)
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
    """The dimensions of a lowered kernel's grid (`blockIdx`) or block (`threadIdx`)."""
    sizes = device.attrs["thread_extent"]  # type: ignore[attr-defined]
    x, y, z = (int(sizes[f"{name}.{axis}"]) if f"{name}.{axis}" in sizes else 1 for axis in "xyz")
    return x, y, z


def includes() -> tuple[Path, ...]:
    """The folders of the headers that TileLang's CUDA includes: its templates and its copy of CUTLASS."""
    root = Path(str(load("tilelang", EXTRA).__file__)).parent
    return root / "src", root / "3rdparty/cutlass/include"


def attend(asked: Arrays, target: Target, how: How) -> Attended:
    """The kernel's output and log-sum-exp, in f32; the same CUDA runs on simulated GPUs and, with nvcc, on real ones.

    InputError for a GPU older than Ampere, or if `lower` raises it; ComparisonError for a finding from the simulator.
    """
    sizes, tiling = fitted(asked, target)
    lowered = lower(sizes, asked.scale, tiling, causal=asked.causal, masked=asked.mask is not None)
    inputs = {"Q": asked.q, "K": asked.k, "V": asked.v} | ({} if asked.mask is None else {"M": asked.mask})
    shape = (sizes.n_seq, sizes.n_head, sizes.n_q)
    outputs = {"O": (np.dtype(np.float32), (*shape, sizes.hsv)), "L": (np.dtype(np.float32), shape)}
    made, seconds = run_lowered(lowered, inputs, outputs, includes=includes(), target=target, how=how)
    return Attended(made["O"], made["L"].astype(np.float32, copy=False), seconds)


def fitted(asked: Arrays, target: Target) -> tuple[Sizes, TileLangTiling]:
    """The sizes of an op and its tiling on a GPU.

    InputError if the GPU is not an NVIDIA GPU, Ampere or newer, or if `sizes_of` or `tiling_for` raises it.
    """
    sizes, device = sizes_of(asked), None if target.engine == "cpu" else device_of(target)
    if device is None or device.gfx or int(device.arch) < ARCH:
        raise InputError(f"{target}: the TileLang kernel needs an NVIDIA GPU, Ampere or newer")
    return sizes, tiling_for(sizes, device.sharedMemPerBlockOptin, causal=asked.causal)


def attend_by_runtime(asked: Arrays, target: Target, how: How) -> Attended:
    """The kernel's output and log-sum-exp, in f32, on a real GPU.

    InputError if the target is not a real GPU, Ampere or newer, if `kernel_for` raises it, or if TileLang fails.
    """
    sizes, tiling = fitted(asked, target)
    if target.engine != "cuda":
        raise InputError(f"{target}: TileLang's own runtime needs a real GPU; use --kernel tilelang instead")
    torch, tilelang = load("torch", EXTRA), load("tilelang", EXTRA)
    on = device_for(torch, target)
    with torch.cuda.device(on):
        function = kernel_for(sizes, asked.scale, tiling, causal=asked.causal, masked=asked.mask is not None)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                compiled = tilelang.compile(function, target="auto")
        # A boundary: TileLang documents no errors, and its passes, TVM and nvcc raise errors of any class.
        # The op is then unsupported, and the run continues with the next case.
        except Exception as error:
            raise InputError(f"TileLang does not compile this op: {reason(error)}") from error
        mask = np.zeros((sizes.n_q, sizes.n_kv), np.float16) if asked.mask is None else asked.mask
        inputs = [torch.tensor(array, device=on) for array in (asked.q, asked.k, asked.v, mask)]
        shape = (sizes.n_seq, sizes.n_head, sizes.n_q)
        o, lse = (torch.empty(ne, dtype=torch.float32, device=on) for ne in ((*shape, sizes.hsv), shape))

        def compute() -> None:
            compiled(*inputs, o, lse)

        compute()
        seconds = seconds_of(torch, compute, how.timing_on(target), on)
    return Attended(o.cpu().numpy(), lse.cpu().numpy(), seconds)


def reason(error: Exception) -> str:
    """The last line of an error's message; the name of its class if it has no message."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
