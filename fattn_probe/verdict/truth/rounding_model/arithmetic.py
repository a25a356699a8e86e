"""The arithmetic that the kernels' plans share: float32 functions of the GPU, and the number format of VKQ."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fattn_probe.base.arrays import F32
from fattn_probe.llama.launch.architecture import AMD, fast_f16, has_dot2
from fattn_probe.llama.launch.families import MMA_F16, TILE
from fattn_probe.llama.launch.kernel import AttentionKernel
from fattn_probe.verdict.truth.rounding_model import functions, functions_amd
from fattn_probe.verdict.truth.rounding_model.functions import fused_sum, half_of


@dataclass(frozen=True)
class FloatFunctions:
    """The float32 functions of device code; `flushed` maps a subnormal result to the one that the GPU returns."""

    exp: Callable[[F32], F32]
    tanh: Callable[[F32], F32]
    power: Callable[[F32, F32], F32]
    divided: Callable[[F32, F32], F32]
    flushed: Callable[[F32], F32]


NVIDIA = FloatFunctions(functions.exp, functions.tanh, functions.power, functions.divided, functions.flushed)
OF_AMD = FloatFunctions(
    functions_amd.exp, functions_amd.tanh, functions_amd.power, functions_amd.divided, functions_amd.unchanged
)


def functions_of(arch: int) -> FloatFunctions:
    """The functions of an architecture."""
    return OF_AMD if arch >= AMD else NVIDIA


@dataclass(frozen=True)
class Accumulator:
    """The number format in which a kernel sums P V: f16 (`half`) or float32."""

    half: bool
    functions: FloatFunctions

    def rounded(self, x: F32) -> F32:
        """A float32 in this format."""
        return half_of(x) if self.half else x

    def product(self, a: F32, b: F32) -> F32:
        """a*b, rounded; in float32 the product of two f16 numbers is exact."""
        return half_of(a * b) if self.half else self.functions.flushed(a * b)

    def sum(self, a: F32, b: F32) -> F32:
        """a + b, rounded."""
        return half_of(np.add(a, b, dtype=np.float64)) if self.half else self.functions.flushed(a + b)

    def fused(self, a: F32, b: F32, c: F32) -> F32:
        """c plus the products of a and b along their first axis, in order; each sum is rounded once."""
        return fused_sum(a, b, c, half=self.half)


@dataclass(frozen=True)
class KernelPlan:
    """One launch of an attention kernel on an architecture."""

    kernel: AttentionKernel
    arch: int

    @property
    def functions(self) -> FloatFunctions:
        """The float32 functions."""
        return functions_of(self.arch)

    @property
    def VKQ(self) -> Accumulator:
        """The number format of VKQ."""
        if self.kernel.family is MMA_F16:
            return Accumulator(not self.kernel.sums_in_f32, self.functions)
        return Accumulator(fast_f16(self.arch) if self.kernel.family is TILE else has_dot2(self.arch), self.functions)
