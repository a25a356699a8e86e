"""GPU architectures by number, and the properties on which the attention kernels' arithmetic depends.

The number is an integer: 61 Pascal, 70 Volta, 75 Turing, 80 to 89 Ampere and Ada, 90 Hopper, 100 and 120 Blackwell.
For AMD, it is ggml's offset `AMD` plus the hexadecimal digits of gfx906, gfx90a, gfx1100 and so on.
"""

import re
from dataclasses import dataclass

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import is_amd

AMD = 0x1000000
"""The value of `GGML_CUDA_CC_OFFSET_AMD` in common.cuh."""
GFX906, CDNA1, CDNA2, CDNA3, RDNA1, RDNA2, RDNA3, RDNA4 = (
    AMD + number for number in (0x906, 0x908, 0x90A, 0x942, 0x1010, 0x1030, 0x1100, 0x1200)
)
"""The first architecture of each AMD generation, as in common.cuh: gfx908 is CDNA1, gfx1100 is RDNA3."""
HIP_CUDA_ARCH = 1300
"""The value of `__CUDA_ARCH__` for every AMD GPU (vendors/hip.h)."""
NVIDIA = (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)
"""NVIDIA architectures since Maxwell."""
NVCC_ARCH = re.compile(r"(\d{2,3})[af]?")
COMPUTE_CAPABILITY = re.compile(r"(\d{1,2})\.(\d)")


def arch_number(text: str) -> int:
    """The architecture's number: 90 for `90` or `9.0`, 120 for `120a` or `12.0`, AMD + 0x90a for `gfx90a`.

    InputError for any other string.
    """
    if is_amd(text.strip()):
        return AMD + int(text.strip().removeprefix("gfx"), 16)
    match = NVCC_ARCH.fullmatch(text.strip()) or COMPUTE_CAPABILITY.fullmatch(text.strip())
    if match is None:
        raise InputError(not_an_architecture(text))
    return int("".join(match.groups()))


def cuda_arch(text: str) -> int:
    """The value of `__CUDA_ARCH__` for an architecture: 900 for `90`."""
    number = arch_number(text)
    return HIP_CUDA_ARCH if number >= AMD else 10 * number


def wave_size(arch: str) -> int:
    """The number of lanes in a warp: 64 on AMD's GCN and CDNA (`ggml_cuda_get_physical_warp_size`), else 32."""
    return 64 if is_amd(arch) and arch.startswith("gfx9") else 32


def is_arch(text: str) -> bool:
    """Whether a string names an architecture: nvcc's name without `sm_` (`90`, `120a`), or AMD's name (`gfx1100`)."""
    return NVCC_ARCH.fullmatch(text) is not None or is_amd(text)


def not_an_architecture(text: str) -> str:
    """The message for a string that does not name an architecture."""
    return f"arch {text!r} is not a compute capability such as 90 or 120a, or an AMD architecture such as gfx1100"


def nvcc_arch(compute_capability: str) -> str:
    """A compute capability as nvcc writes it: `90` for `9.0`; with an "a" for 12.x, as in upstream's build."""
    number = arch_number(compute_capability)
    return f"{number}a" if number >= 120 else str(number)


@dataclass(frozen=True)
class Generation:
    """The tensor cores of one generation, and how fattn-mma-f16 uses them.

    They add `group` products at once, with `extra` bits beyond 24. An instruction with f16 accumulators rounds them
    after `k_half` products (the K of m8n8k4, m16n8k8, m16n8k16). A warp works on `columns` columns (a column is one
    query of one head) and `chunk` KV rows at a time. `configuration` is the suffix of the function in
    fattn-mma-f16.cuh that has the generation's sizes.
    """

    group: int
    extra: int
    k_half: int
    columns: int
    chunk: int
    configuration: str


def generation_of(arch: int) -> Generation:
    """The generation of an architecture. Assumption: Ada is like Ampere, and Blackwell is like Hopper.

    The figures for CDNA were measured on an MI100, an MI210 and an MI300X (MMA-Sim, arXiv 2511.10909); those for RDNA
    were recorded from a gfx1100 and a gfx1201 in AMD's emulator rocjitsu.
    """
    if is_cdna(arch):
        return Generation(8 if arch >= CDNA3 else 4, 0, 16, 16, 16, "cdna")
    if arch >= AMD:
        group = 4 if arch >= RDNA4 else 2
        return Generation(group, 0, group, 16, 16, "rdna")
    if arch >= 90:
        return Generation(16, 2, 16, 16, 16, "ampere")
    if arch >= 80:
        return Generation(8, 1, 16, 16, 16, "ampere")
    if arch >= 75:
        return Generation(4, 0, 8, 16, 16, "turing")
    return Generation(4, 0, 4, 32, 8, "volta")


def is_cdna(arch: int) -> bool:
    """Whether an architecture has AMD's MFMA matrix instructions (`amd_mfma_available`)."""
    return CDNA1 <= arch < RDNA1


def has_dot2(arch: int) -> bool:
    """Whether an architecture has AMD's dot product of f16 pairs with an f32 sum (`V_DOT2_F32_F16_AVAILABLE`)."""
    return arch == GFX906 or is_cdna(arch) or arch >= RDNA2


def tile_configuration(arch: int) -> str:
    """The suffix of the function in fattn-tile.cuh that contains the sizes for an architecture."""
    if arch >= AMD:
        return "amd_rdna" if arch >= RDNA1 else "amd"
    return "fp16" if fast_f16(arch) else "fp32"


def fast_f16(arch: int) -> bool:
    """Whether f16 arithmetic is fast (`FAST_FP16_AVAILABLE`): Pascal or newer, except compute capability 6.1."""
    return arch >= 60 and arch != 61


def copy_bytes(arch: int) -> int:
    """The largest number of bytes that a thread copies at once (`ggml_cuda_get_max_cpy_bytes`)."""
    return 16 if arch >= 70 else 8
