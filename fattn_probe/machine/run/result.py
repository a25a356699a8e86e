"""The runner's result file: where the op ran, its times, and dst."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fattn_probe.base.errors import InputError
from fattn_probe.cases.op.gguf_file import GgufFile, read_gguf


@dataclass(frozen=True, eq=False)
class RunResult:
    """One result file.

    `dst` is float32 (n_seq, n_q, n_head, hsv), dst's `ne` reversed, None if nothing ran; `seconds` has one time for
    each repeat, by `clock`: `gpu` (events around the kernels) or `wall` (around ggml_backend_graph_compute).
    """

    backend: str
    device: str
    digest: str
    unsupported: str
    clock: str
    seconds: tuple[float, ...]
    dst: npt.NDArray[np.float32] | None


def read_result(path: Path) -> RunResult:
    """Read the runner's result file."""
    file = read_gguf(path)
    return RunResult(
        backend=file.one("fattn.run.backend", str),
        device=file.one("fattn.run.device", str),
        digest=file.one("fattn.run.digest", str),
        unsupported="" if file.one("fattn.run.status", str) == "ok" else file.one("fattn.run.reason", str),
        clock=file.one("fattn.run.clock", str) if "fattn.run.clock" in file.fields else "",
        seconds=file.several("fattn.run.seconds", float),
        dst=read_dst(file) if "dst" in file.tensors else None,
    )


def read_dst(file: GgufFile) -> npt.NDArray[np.float32]:
    """The op's output, mapped from the file: float32 (n_seq, n_q, n_head, hsv)."""
    if "dst" not in file.tensors:
        raise InputError(
            f"{file.path}: there is no tensor dst, the output of a run; `compare --on TARGETS` runs the case"
        )
    tensor = file.tensors["dst"]
    if tensor.type != "f32":
        raise InputError(f"{file.path}: dst is {tensor.type}, the op writes f32")
    return tensor.data.view(np.float32).reshape(tensor.ne[::-1])
