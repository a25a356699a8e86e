"""The real GPUs of this machine."""

from functools import lru_cache

from fattn_probe.base.errors import BuildError, InputError
from fattn_probe.base.process import run
from fattn_probe.llama.launch.architecture import nvcc_arch


def has_gpu() -> bool:
    """Whether this machine has a GPU and a driver."""
    try:
        gpu_arch(0)
    except InputError:
        return False
    return True


@lru_cache
def gpu_arch(index: int) -> str:
    """nvcc's number for a GPU of this machine: "90" for an H200."""
    try:
        done = run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", "-i", str(index)], failure=None)
    except BuildError as error:
        raise InputError(
            "--on gpu: no NVIDIA driver is on this machine (nvidia-smi); --on sim:h200 needs none"
        ) from error
    if done.code != 0:
        raise InputError(f"--on gpu:{index}: {(done.stdout + done.stderr).strip()}")
    return nvcc_arch(done.stdout)


@lru_cache
def gpu_name(index: int) -> str:
    """The name of a GPU of this machine: "NVIDIA H200"."""
    return run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "-i", str(index)]).stdout.strip()
