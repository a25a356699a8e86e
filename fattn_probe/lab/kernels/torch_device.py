"""The device for PyTorch and Triton, and timing on a GPU."""

from collections.abc import Callable
from types import ModuleType

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Target
from fattn_probe.lab.kernels.contender import Timing

CPU = "cpu"


def device_for(torch: ModuleType, target: Target) -> str:
    """PyTorch's name of a target's GPU, `cuda:0`; `cpu` if the target is not a real GPU. InputError without the GPU."""
    if target.engine != "cuda":
        return CPU
    if target.gpu >= torch.cuda.device_count():
        raise InputError(f"PyTorch sees {torch.cuda.device_count()} GPUs, so it has no {target}")
    return f"cuda:{target.gpu}"


def seconds_of(torch: ModuleType, compute: Callable[[], object], timing: Timing, device: str) -> tuple[float, ...]:
    """Seconds of each timed run of what `compute` launches, by events on the GPU; none on the CPU.

    The launches are recorded once, as a CUDA graph, so that the time of Python between them does not count.
    """
    if device == CPU or not timing.repeats:
        return ()
    with torch.cuda.device(device):
        compute()  # objects made at the first call, such as cuBLAS's handle, must exist before a graph is recorded
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            compute()
        return tuple(replayed(torch, graph) for _ in range(timing.warmup + timing.repeats))[timing.warmup :]


def replayed(torch: ModuleType, graph: object) -> float:
    """Seconds of one run of a recorded graph."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()  # type: ignore[attr-defined]
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / 1000
