"""The contenders by their names for `--kernel`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device.catalogue import nearest
from fattn_probe.lab.kernels.compiled import own, shipped
from fattn_probe.lab.kernels.contender import Contender
from fattn_probe.lab.kernels.packages import PACKAGES, torch_backends
from fattn_probe.llama.build.ninja import Report, silent

LLAMA = "llama"
OURS = ("naive", "tiled")


@dataclass(frozen=True)
class KnownKernel:
    """A contender that comes with fattn-probe: its name, a description, and where it runs."""

    name: str
    about: str
    runs: str


KNOWN = (
    KnownKernel(LLAMA, "llama.cpp's own kernels, as everywhere else", "sim, gpu, cpu"),
    KnownKernel("naive", "a thread for each query row; K and V from global memory; f32", "sim, AMD's too, gpu"),
    KnownKernel("tiled", "K and V in tiles of shared memory, online softmax; f32", "sim, AMD's too, gpu"),
    KnownKernel("triton", "FlashAttention-2 in Triton; extra `triton`", "gpu, else Triton's interpreter"),
    KnownKernel(
        "tilelang", "FlashAttention-2 in TileLang, on fragments; extra `tilelang`", "sim and gpu, Ampere and newer"
    ),
    KnownKernel("tilelang:jit", "the same with TileLang's own runtime, for the present GPU", "gpu, Ampere and newer"),
    KnownKernel("torch", "PyTorch's backends, or one of them: torch:flash; extra `torch`", "gpu, else cpu"),
)


def contenders_of(words: Sequence[str], report: Report = silent) -> list[Contender | None]:
    """The contenders that `--kernel` names; llama.cpp's kernels are None. InputError for an unknown name, or none."""
    if not words:
        raise InputError(f"--kernel: no name is given; kernels: {', '.join(known.name for known in KNOWN)}")
    found: list[Contender | None] = []
    for word in words:
        found += torch_backends() if word == "torch" else [None if word == LLAMA else contender_of(word, report)]
    return found


def contender_of(word: str, report: Report) -> Contender:
    """The contender of one name."""
    names = tuple(known.name for known in KNOWN)
    if word in OURS:
        return shipped(word, report)
    if word in PACKAGES:
        return PACKAGES[word]
    before, colon, _ = word.partition(":")
    if colon and before in names and not Path(before).is_file():
        variants = [name for name in PACKAGES if name.startswith(f"{before}:")]
        has = f"{before} has {', '.join(variants)}" if variants else f"{before} has no variants"
        raise InputError(f"--kernel {word}: no such kernel; {has}")
    if colon:
        return own(word, report)
    hint = nearest(word, names)
    raise InputError(f"--kernel {word}: no such kernel{hint}; kernels: {', '.join(names)}, or FILE.cu:NAME")
