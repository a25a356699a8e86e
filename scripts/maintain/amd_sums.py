"""The simulator's sums of f16 products on AMD GPUs, for tinygrad's emulator.

tinygrad adds the products of matrix instructions and v_dot2_f32_f16 one by one. The hardware does not, and the
simulator follows the hardware: MMA-Sim's measurements (CDNA) and results on RDNA GPUs. Only the sums are replaced;
tinygrad determines the positions of a matrix's elements in the registers.
"""

import ctypes
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fattn_probe.base.errors import InputError
from fattn_probe.base.process import run
from fattn_probe.llama.build.simulator_flags import ARITHMETIC, SIM, X86_V3
from maintain.emulator import Registers, active_lanes

MATRIX = re.compile(
    r"v_(?:mfma|wmma)_(f32|f16)_16x16x16_f16 "
    r"v\[(\d+):\d+\], v\[(\d+):\d+\], v\[(\d+):\d+\], (?:v\[(\d+):\d+\]|0)( op_sel:\[0,0,1\])?\s*"
)
DOT2 = re.compile(r"v_dot2_f32_f16 v(\d+), v(\d+), v(\d+), v(\d+)\s*")
Indices = npt.NDArray[np.intp]


class Sums:
    """The simulator's sums for an architecture, compiled in a folder."""

    def __init__(self, folder: Path, gfx: str) -> None:
        library = folder / f"sums-{gfx}.so"
        flags = ("-std=c++17", "-O2", "-shared", "-fPIC", *X86_V3, *ARITHMETIC, f"-DSIMT_GFX_NUMBER=0x{gfx[3:]}")
        run(["g++", *flags, f"-I{SIM}", Path(__file__).with_suffix(".cpp"), "-o", library])
        self.native, self.gfx = ctypes.CDLL(str(library)), gfx
        self.factor_lane, self.factor, self.result_lane, self.result = places(gfx)

    def executes(self, text: str, scalars: memoryview, vectors: Registers) -> bool:
        """Execute an instruction on a wave's registers; False for an instruction that computes no such sum."""
        if match := DOT2.fullmatch(text):
            to, *sources = (int(word) for word in match.groups())
            a, b, c = (vectors[source].copy() for source in sources)
            self.native.add_pairs_of_lanes(*(it.ctypes.data_as(ctypes.c_void_p) for it in (a, b, c)), len(c))
            active = active_lanes(scalars, vectors)
            vectors[to][active] = c[active]
        elif match := MATRIX.fullmatch(text):
            self._multiply(match, vectors)
        elif text.startswith(("v_mfma", "v_wmma", "v_dot2_")):
            raise InputError(f"no sum for {text}")
        else:
            return False
        return True

    def _multiply(self, match: re.Match[str], vectors: Registers) -> None:
        halves = vectors.view(np.uint16).reshape(*vectors.shape, 2)
        packed, high = match[1] == "f16", int(match[6] is not None)
        to, a, b = (int(match[group]) for group in (2, 3, 4))
        left, right = (halves[first + self.factor // 2, self.factor_lane, self.factor % 2] for first in (a, b))

        def results(first: int) -> tuple[Indices, ...]:
            """The positions of the results, in registers or in their halves."""
            if not packed:
                return first + self.result, self.result_lane
            if self.gfx == "gfx1201":
                return first + self.result // 2, self.result_lane, self.result % 2
            return first + self.result, self.result_lane, np.full_like(self.result, high)

        area = halves if packed else vectors
        sums = np.zeros((16, 16), np.uint32) if match[5] is None else area[results(int(match[5]))].astype(np.uint32)
        pointers = [it.ctypes.data_as(ctypes.c_void_p) for it in (left, right, sums)]
        self.native.add_product(*pointers, ctypes.c_bool(packed))
        area[results(to)] = sums


def places(gfx: str) -> tuple[Indices, Indices, Indices, Indices]:
    """The lane of A's [row][k] or B's [column][k], and its f16's index; the lane and register of D's [row][column]."""
    x, y = np.indices((16, 16))
    if gfx == "gfx942":
        return x + y // 4 * 16, y % 4, y + x // 4 * 16, x % 4
    if gfx == "gfx1100":
        return x, y, y + x % 2 * 16, x // 2
    return x + y // 4 % 2 * 16, y % 4 + y // 8 * 4, y + x // 8 * 16, x % 8
