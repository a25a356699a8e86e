"""Packages that only some kernels need, and the arrays that all of them accept."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from fattn_probe.base.arrays import F32, Floats, Halves
from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Target
from fattn_probe.cases.op import Sizes
from fattn_probe.lab.kernels.contender import Timing
from fattn_probe.verdict.truth.reference.shapes import check_shapes


@dataclass(frozen=True, eq=False)
class Arrays:
    """An op as arrays in f16: q (n_seq, n_head, n_q, hsk), k and v (n_seq, n_head_kv, n_kv, hsk or hsv).

    With `causal`, query i sees the KV rows up to i + n_kv - n_q. `mask` is (n_q, n_kv); None if the op has no mask, or
    if the mask hides the same elements as `causal`.
    """

    q: Halves
    k: Halves
    v: Halves
    scale: float
    causal: bool = False
    mask: Floats | None = None


@dataclass(frozen=True, eq=False)
class Attended:
    """A kernel's output: o (n_seq, n_head, n_q, hsv), and log-sum-exp (n_seq, n_head, n_q) if available.

    `seconds` are the timed runs; empty except on a GPU.
    """

    o: Floats
    lse: F32 | None = None
    seconds: tuple[float, ...] = ()


def load(module: str, extra: str) -> ModuleType:
    """A module of a package that an extra of fattn-probe installs; if it is missing, InputError with the command."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("fattn_probe"):
            raise
        raise InputError(f"{error.name} is not installed: `pip install 'fattn-probe[{extra}]'`") from None


def sizes_of(asked: Arrays) -> Sizes:
    """The sizes of an op; InputError if its arrays do not fit together, or if one is not f16."""
    q, k, v, mask = asked.q, asked.k, asked.v, asked.mask
    arrays = {"q": q, "k": k, "v": v} | ({} if mask is None else {"mask": mask})
    other = [f"{name} is {array.dtype}, but must be f16" for name, array in arrays.items() if array.dtype != np.float16]
    if other:
        raise InputError("\n".join(other))
    if mask is not None and mask.shape != (q.shape[-2], k.shape[-2]):
        raise InputError(f"the mask is {mask.shape}, but must be (n_q, n_kv) = {(q.shape[-2], k.shape[-2])}")
    return check_shapes(q, k, v, None, None)


CPU = "cpu"


def device_for(torch: ModuleType, target: Target) -> str:
    """PyTorch's name for a target's GPU, `cuda:0`; `cpu` if it is simulated. InputError if PyTorch does not see it."""
    if target.engine != "cuda":
        return CPU
    if target.gpu >= torch.cuda.device_count():
        raise InputError(f"PyTorch sees {torch.cuda.device_count()} GPUs, so it has no {target}")
    return f"cuda:{target.gpu}"


def seconds_of(torch: ModuleType, compute: Callable[[], object], timing: Timing, device: str) -> tuple[float, ...]:
    """Seconds per timed run of the kernels that `compute` launches, from events on the GPU; empty on the CPU.

    The launches are recorded once, as a CUDA graph, so the time that Python takes between launches is not counted.
    """
    warmup, repeats = timing
    if device == CPU or not repeats:
        return ()
    with torch.cuda.device(device):
        compute()  # objects created at the first call, such as cuBLAS's handle, must exist before a graph is recorded
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            compute()
        found = []
        for _ in range(warmup + repeats):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            found.append(float(start.elapsed_time(stop)) / 1000)
        return tuple(found[warmup:])
