# mypy: ignore-errors
"""Record what AMD's matrix instructions do, as two public models say it. Run apart from the tests.

    python record_amd.py layouts CALCULATOR  writes amd_layouts.npz; needs tabulate
    python record_amd.py results MMA_SIM     writes amd_results.npz; needs ml_dtypes

CALCULATOR is a checkout of github.com/ROCm/amd_matrix_instruction_calculator (recorded with 2ef9189), MMA_SIM one of
github.com/microsoft/MMA-Sim (recorded with c785138). MMA-Sim runs on NumPy in place of torch, of which its AMD models
use little. Its sums in pairs assert that factors are float32: they get f16 and bf16 converted, which is exact.

amd_hardware.csv is not made here: these are some of the results that the tests of AMD's emulator rocjitsu have from a
Radeon Pro W7900 (gfx1100) and a Radeon AI Pro R9700 (gfx1201): github.com/ROCm/rocm-systems, MIT,
emulation/rocjitsu/tests/fixtures/float_dot. They are bits, in the order of the lanes; `integers`: a formula there.
"""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

HERE = Path(__file__).parent
CDNA1 = ("v_mfma_f32_16x16x4f32", "v_mfma_f32_16x16x16f16", "v_mfma_f32_16x16x8bf16", "v_mfma_i32_16x16x16i8")
CDNA1 = (*CDNA1, "v_mfma_i32_32x32x8i8")
CDNA3 = ("v_mfma_f32_16x16x4_f32", "v_mfma_f32_16x16x16_f16", "v_mfma_f32_16x16x8_xf32", "v_mfma_f32_16x16x16_bf16")
CDNA3 = (*CDNA3, "v_mfma_i32_16x16x32_i8", "v_mfma_i32_32x32x16_i8")
WMMA = ("v_wmma_f32_16x16x16_f16", "v_wmma_f32_16x16x16_bf16", "v_wmma_f16_16x16x16_f16", "v_wmma_i32_16x16x16_iu8")
INSTRUCTIONS = {
    "gfx908": CDNA1,
    "gfx90a": (*CDNA1, "v_mfma_f32_16x16x16bf16_1k"),
    "gfx942": CDNA3,
    "gfx1100": WMMA,
    "gfx1201": WMMA,
}
PLACE = re.compile(r"v(\d+)\{(\d+)\}(?:\.\[\d+:(\d+)\])?")


def short(instruction):
    """AMD's name since CDNA3: v_mfma_f32_16x16x16_bf16 for v_mfma_f32_16x16x16bf16_1k."""
    return re.sub(r"(x\d+)_?([a-z]+\d+)(_1k)?$", r"\1_\2", instruction)


def record_layouts(calculator):
    """[copy][row][column][register, lane, first bit] of each matrix, by `gfx/instruction/matrix`."""
    layouts = {}
    for gfx, instructions in INSTRUCTIONS.items():
        for instruction in instructions:
            words = [sys.executable, calculator / "matrix_calculator.py", "-a", gfx, "-i", instruction, "-R", "--csv"]
            high = [("/high", ["--opsel", "4"])] if (gfx, instruction) == ("gfx1100", WMMA[2]) else []
            for suffix, more in [("", []), *high]:
                for matrix in "ABCD":
                    command = [*words, f"-{matrix}", *(more if matrix in "CD" else [])]
                    done = subprocess.run(command, capture_output=True, text=True, check=True)
                    rows = [line.split(",")[1:] for line in done.stdout.splitlines() if line[:1].isdigit()]
                    places = [[[place.groups("0") for place in PLACE.finditer(cell)] for cell in row] for row in rows]
                    table = np.array(places, int).astype(np.uint8).transpose(2, 0, 1, 3)
                    layouts[f"{gfx}/{short(instruction)}{suffix}/{matrix}"] = table
    np.savez_compressed(HERE / "amd_layouts.npz", **layouts)


def stand_in_for_torch():
    """The part of torch that the AMD models of MMA-Sim use."""
    import ml_dtypes

    class Tensor(np.ndarray):
        def __array_wrap__(self, array, context=None, return_scalar=False):
            return np.asarray(array).view(Tensor)

        def __getitem__(self, index):
            return np.asarray(super().__getitem__(index)).view(Tensor)

        def numel(self):
            return self.size

        def double(self):
            return self.astype(np.float64)

        def abs(self):
            return np.abs(self)

        def cpu(self):
            return self.copy()

        def item(self):
            return float(np.asarray(self).reshape(()))

    torch = ModuleType("torch")
    torch.Tensor, torch.dtype, torch.isnan, torch.isinf = Tensor, np.dtype, np.isnan, np.isinf
    torch.tensor = lambda value, dtype: np.array(value, np.float64).astype(dtype).view(Tensor)
    torch.zeros = lambda shape, dtype: np.zeros(shape, dtype).view(Tensor)
    for name in ("int32", "uint8", "uint16", "uint32", "float16", "float32", "float64"):
        setattr(torch, name, np.dtype(name))
    for name in ("bfloat16", *(f"float8_{kind}" for kind in ("e8m0fnu", "e5m2", "e4m3fn", "e5m2fnuz", "e4m3fnuz"))):
        setattr(torch, name, np.dtype(getattr(ml_dtypes, name)))
    return torch


def factors(rng, kind, shape, dtype):
    """A matrix of one kind of factors or addends."""
    normal = rng.normal(size=shape)
    bits = {2: np.uint16, 4: np.uint32}[dtype.itemsize]
    if kind == "normal":
        return normal.astype(dtype)
    if kind == "spread":
        return np.ldexp(normal, rng.integers(-12, 12, shape)).astype(dtype)
    if kind == "tiny":  # denormals, and what is near them
        lowest = {"float16": -14, "bfloat16": -126, "float32": -126}[dtype.name]
        scale = lowest if dtype.name == "float16" else lowest // 2
        values = np.ldexp(normal, rng.integers(-4, 4, shape) + scale).astype(dtype)
        denormal = rng.integers(0, 1 << (10 if dtype.name == "float16" else 7), shape).astype(bits).view(dtype)
        return np.where(rng.integers(0, 3, shape) == 0, denormal, values)
    if kind == "cancelling":
        return (rng.choice([-1, 1], shape) * (1 + rng.integers(0, 1024, shape) * 2.0**-10)).astype(dtype)
    values = np.ldexp(normal, rng.integers(-3, 16 if dtype.name == "float16" else 127, shape)).astype(dtype)  # "huge"
    values[rng.integers(0, 40, shape) == 0] = np.inf
    values[rng.integers(0, 200, shape) == 0] = np.nan
    return values


def record_results(checkout):
    """A, B, C and D of each f16, bf16 and f32 instruction, one 16x16 tile for each kind of factors, as bits."""
    sys.path.insert(0, str(checkout))
    torch = sys.modules["torch"] = stand_in_for_torch()
    from mmasim.simulator import amd

    in_pairs = amd.pairwise_dot
    amd.pairwise_dot = lambda a, b, flush: in_pairs(a.astype(np.float32), b.astype(np.float32), flush)
    results = {}
    for number, gfx in enumerate(("gfx908", "gfx90a", "gfx942"), 1):
        for instruction in INSTRUCTIONS[gfx]:
            if "_i32_" in instruction:
                continue
            model = amd.mfma(f"CDNA{number}", instruction.removeprefix("v_mfma_"))
            rng = np.random.default_rng(number)
            tiles = []
            for kind in ("normal", "spread", "tiny", "cancelling", "huge"):
                with np.errstate(all="ignore"):
                    a = factors(rng, kind, (model.m, model.k), model.a_type).view(torch.Tensor)
                    b = factors(rng, kind, (model.k, model.n), model.a_type).view(torch.Tensor)
                    c = factors(rng, kind, (model.m, model.n), model.c_type).view(torch.Tensor)
                    tiles.append((a, b, c, model(a.copy(), b.copy(), c.copy())))
            for name, arrays in zip("abcd", zip(*tiles, strict=True), strict=True):
                bits = {2: np.uint16, 4: np.uint32}[arrays[0].dtype.itemsize]
                results[f"{gfx}/{short(instruction)}/{name}"] = np.stack([np.asarray(x).view(bits) for x in arrays])
    np.savez_compressed(HERE / "amd_results.npz", **results)


if __name__ == "__main__":
    {"layouts": record_layouts, "results": record_results}[sys.argv[1]](Path(sys.argv[2]))
