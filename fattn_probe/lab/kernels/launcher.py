"""Run a CUDA kernel, given as source text, on NumPy arrays, by a generated program that reads and writes files."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fattn_probe.base.arrays import Numbers
from fattn_probe.base.errors import ComparisonError, LostError
from fattn_probe.base.scratch import scratch
from fattn_probe.cases.device import Target
from fattn_probe.lab.kernels.contender import How
from fattn_probe.lab.program.build import maker, written
from fattn_probe.lab.program.execute import ProgramSettings, execute
from fattn_probe.lab.program.source import Program
from fattn_probe.machine.run.frames import describe_fault
from fattn_probe.machine.run.outcome import lost_message

Array = tuple[np.dtype[np.generic], tuple[int, ...]]
"""The element type and the shape of an array."""
HEADERS = Path(__file__).parent / "cuda"


@dataclass(frozen=True)
class LoweredKernel:
    """A kernel that a compiler generated as CUDA: its source, and its launch.

    `grid` and `block` are (x, y, z), `shared_bytes` is the dynamic shared memory, `arguments` are the names of its
    pointers, in order.
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
    """The outputs of a kernel by the names of its arguments, and the seconds of each timed run.

    ComparisonError if the simulator stops it with a finding, LostError if it ends otherwise.
    """
    arrays = {name: (array.dtype, array.shape) for name, array in inputs.items()} | dict(outputs)
    making, timing = maker(target, "check" if how.check else "release"), how.timing_on(target)
    path = written(program_text(kernel, arrays, frozenset(outputs)), kernel.name, ".cu")
    made = replace(making.make(Program(path, (*includes, HEADERS))), source=Path(kernel.name))
    with scratch() as folder:
        for name, array in inputs.items():
            np.ascontiguousarray(array).tofile(folder / name)
        words = (str(folder), str(timing.warmup), str(timing.repeats))
        # Raise if a program did not run to its end.
        run = execute(made, target, ProgramSettings(words, how.timeout, keeps_output=True), how.simulation)
        if run.fault is not None:
            raise ComparisonError(describe_fault(run.fault))
        if run.code:
            raise LostError(lost_message("the kernel's program", run.code, run.stderr))
        found = {name: np.fromfile(folder / name, dtype).reshape(shape) for name, (dtype, shape) in outputs.items()}
        return found, tuple(map(float, np.fromfile(folder / "seconds", np.float64)))


def program_text(kernel: LoweredKernel, arrays: Mapping[str, Array], outputs: frozenset[str]) -> str:
    """A program that launches a kernel; its arguments are the folder of the arrays, and the number of runs."""
    described = ", ".join(
        f'{{"{name}", {bytes_of(arrays[name])}, {str(name in outputs).lower()}}}' for name in kernel.arguments
    )
    grid, block = (", ".join(map(str, sizes)) for sizes in (kernel.grid, kernel.block))
    launch = f"{kernel.name}, dim3({grid}), dim3({block}), {kernel.shared_bytes}"
    return f"""{kernel.source}
#include <run_kernel.h>

int main(int, char **words) {{
    return run_kernel({launch}, words, {{{described}}});
}}
"""


def bytes_of(array: Array) -> int:
    """The bytes of an array."""
    dtype, shape = array
    return dtype.itemsize * math.prod(shape)
