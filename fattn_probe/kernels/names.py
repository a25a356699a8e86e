"""The contenders by the names that `--kernel` takes."""

from collections.abc import Sequence
from dataclasses import dataclass

from fattn_probe.build.ninja import Report, silent
from fattn_probe.device.catalogue import nearest
from fattn_probe.errors import InputError
from fattn_probe.kernels.compiled import own, shipped
from fattn_probe.kernels.contender import Contender

LLAMA = "llama"


@dataclass(frozen=True)
class Known:
    """A contender of fattn-probe's own: its name, what it is, and where it runs."""

    name: str
    about: str
    runs: str


KNOWN = (
    Known(LLAMA, "llama.cpp's own kernels, as everywhere else", "sim, gpu, cpu"),
    Known("naive", "a thread for each query row; K and V from global memory; f32", "sim, AMD's too, gpu"),
    Known("tiled", "K and V in tiles of shared memory, online softmax; f32", "sim, AMD's too, gpu"),
)


def contenders_of(words: Sequence[str], report: Report = silent) -> list[Contender | None]:
    """The contenders that `--kernel` names; llama.cpp's kernels are None. InputError for an unknown name."""
    return [contender_of(word, report) for word in words]


def contender_of(word: str, report: Report) -> Contender | None:
    """The contender of one name."""
    if word == LLAMA:
        return None
    names = tuple(known.name for known in KNOWN)
    if word in names:
        return shipped(word, report)
    if ":" in word:
        return own(word, report)
    hint = nearest(word, names)
    raise InputError(f"--kernel {word}: no such kernel{hint}; kernels: {', '.join(names)}, or FILE.cu:NAME")
