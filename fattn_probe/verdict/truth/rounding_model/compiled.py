"""The rounding model's sums in C++ (native/rounding/sums.cpp): the same bits as the NumPy code, in less time."""

import ctypes
import functools
import logging
import platform
from ctypes import c_int, c_long, c_void_p
from math import prod
from pathlib import Path

import numpy as np

from fattn_probe.base.arrays import F32, F64, I8
from fattn_probe.base.cache import Kind, get_or_make
from fattn_probe.base.digest import hexdigest
from fattn_probe.base.errors import FattnProbeError
from fattn_probe.base.process import run
from fattn_probe.llama.build.simulator_flags import X86_V3

log = logging.getLogger(__name__)
SUMS = Kind("sums", "the library of the rounding model")
SOURCE = Path(__file__).parents[3] / "native/rounding/sums.cpp"
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared", "-w")


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library from the cache, compiled if missing; None if compiling fails, or if this processor cannot run it."""
    machine, name = platform.machine(), "sums.so"
    flags = (*FLAGS, *(X86_V3 if machine in ("x86_64", "AMD64") else ()))

    def make(folder: Path) -> None:
        run(["g++", *flags, SOURCE, "-o", folder / name])

    try:
        folder = get_or_make(SUMS, hexdigest("\0".join((machine, *flags, SOURCE.read_text()))), make)
        found = ctypes.CDLL(str(folder / name))
    except (FattnProbeError, OSError) as error:
        log.info("the rounding model takes several times as long: %s", error)
        return None
    found.to_half.argtypes = (c_long, c_void_p, c_void_p)
    found.powers_of_two.argtypes = (c_long, c_void_p, c_void_p, c_void_p)
    found.fused_sums.argtypes = (c_int, c_long, *[c_void_p] * 5)
    found.matrix_sums.argtypes = (c_void_p,) * 4
    return found if found.usable() else None


def half_of(x: F32 | F64) -> F32 | None:
    """`functions.half_of` of float32 numbers; None for other types, and without the library."""
    if x.dtype != np.float32 or (found := library()) is None:
        return None
    x = np.asarray(x, np.float32, order="C")
    result = np.empty(x.shape, np.float32)
    found.to_half(x.size, _address(x), _address(result))
    return result


def ex2(x: F32, table: I8) -> F32 | None:
    """`functions.ex2`, with its table."""
    if (found := library()) is None:
        return None
    x = np.asarray(x, np.float32, order="C")
    result = np.empty(x.shape, np.float32)
    found.powers_of_two(x.size, _address(x), _address(table), _address(result))
    return result


def fused_sum(a: F32, b: F32, c: F32, *, half: bool) -> F32 | None:
    """`functions.fused_sum`."""
    if (found := library()) is None:
        return None
    shape = np.broadcast_shapes(a.shape[1:], b.shape[1:], c.shape)
    sizes = shape or (1,)
    numbers = [len(a), *sizes]
    for x in (a, b, c[None]):
        steps = [0 if size == 1 else step // x.itemsize for size, step in zip(x.shape, x.strides, strict=True)]
        numbers += [steps[0], *[0] * (len(sizes) + 1 - x.ndim), *steps[1:]]
    result = np.empty(shape, np.float32)
    plan = (c_long * len(numbers))(*numbers)
    found.fused_sums(half, len(sizes) + 1, plan, *map(_address, (a, b, c, result)))
    return result


def matrix_sum(a: F32, b: F32, c: F32, *rule: int) -> F32 | None:
    """c + a @ b of finite operands, added as in `tensor_core`; `rule`: the fields of C++ `Matrices` from `group` on."""
    if (found := library()) is None:
        return None
    *batch, M, N = c.shape
    a, b = (np.ascontiguousarray(np.broadcast_to(x, (*batch, *x.shape[-2:]))) for x in (a, b))
    result = np.array(c, np.float32, order="C")
    numbers = (c_long * 10)(prod(batch), M, a.shape[-1], N, *rule)
    found.matrix_sums(numbers, *map(_address, (a, b, result)))
    return result


def _address(values: F32 | I8) -> int:
    return int(values.__array_interface__["data"][0])
