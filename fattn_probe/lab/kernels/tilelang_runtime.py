"""The attention kernel in TileLang by TileLang's own runtime: compiled for the GPU that is there, on PyTorch's tensors.

On Hopper it is not the code that the simulator runs: it loads by TMA and multiplies by WGMMA.
"""

import contextlib
import io

import numpy as np

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Target
from fattn_probe.lab.kernels.contender import How
from fattn_probe.lab.kernels.extras import Arrays, Attended, load
from fattn_probe.lab.kernels.tilelang_attention import EXTRA, fitted, written
from fattn_probe.lab.kernels.torch_device import device_for, seconds_of


def attend(asked: Arrays, *, target: Target, how: How) -> Attended:
    """Output and log-sum-exp of the kernel, in f32, on a real GPU.

    InputError without such a GPU, for one before Ampere, and as from `written`, or if TileLang cannot compile the
    kernel.
    """
    sizes, tiling = fitted(asked, target)
    if target.engine != "cuda":
        raise InputError(f"{target}: TileLang's own runtime needs a real GPU; --kernel tilelang runs here")
    torch, tilelang = load("torch", EXTRA), load("tilelang", EXTRA)
    on = device_for(torch, target)
    with torch.cuda.device(on):
        function = written(sizes, asked.scale, tiling, causal=asked.causal, masked=asked.mask is not None)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                compiled = tilelang.compile(function, target="auto")
        # A boundary: TileLang documents no errors, and its passes, TVM and nvcc raise any class, assertions too. The op
        # is then unsupported, and the next case goes on.
        except Exception as error:
            raise InputError(f"TileLang does not compile this op: {reason(error)}") from error
        mask = np.zeros((sizes.n_q, sizes.n_kv), np.float16) if asked.mask is None else asked.mask
        inputs = [torch.tensor(array, device=on) for array in (asked.q, asked.k, asked.v, mask)]
        shape = (sizes.n_seq, sizes.n_head, sizes.n_q)
        o, lse = (torch.empty(ne, dtype=torch.float32, device=on) for ne in ((*shape, sizes.hsv), shape))

        def compute() -> None:
            compiled(*inputs, o, lse)

        compute()
        seconds = seconds_of(torch, compute, how.timing_on(target), on)
    return Attended(o.cpu().numpy(), lse.cpu().numpy(), seconds)


def reason(error: Exception) -> str:
    """The last line of an error's message; the name of its class if it has none."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
