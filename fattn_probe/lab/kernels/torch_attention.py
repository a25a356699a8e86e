"""Attention with PyTorch: its scaled_dot_product_attention with each available backend, and a kernel in Triton.

Triton runs on a GPU with tuned block sizes, or without a GPU in its interpreter.
"""

import os
import warnings
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import numpy as np

from fattn_probe.base.arrays import Floats, Halves
from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Target
from fattn_probe.lab.kernels.contender import UNTIMED, How
from fattn_probe.lab.kernels.extras import CPU, Arrays, Attended, device_for, load, seconds_of, sizes_of

EXTRA = "torch"
BACKENDS = {
    "math": "MATH",
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
}
"""Maps the NAME of `--kernel torch:NAME` to the name in torch.nn.attention.SDPBackend."""


def backends() -> tuple[str, ...]:
    """The backends that compute a small op in f16 on this machine: on its GPU, or on its CPU if it has none.

    InputError if PyTorch is not installed.
    """
    target = Target("cuda" if load("torch", EXTRA).cuda.is_available() else "cpu")
    small = np.zeros((1, 1, 16, 64), np.float16)
    asked = Arrays(small, small, small, 1.0)
    return tuple(name for name in BACKENDS if computes(name, asked, target))


def computes(backend: str, asked: Arrays, target: Target) -> bool:
    """Whether a backend accepts an op."""
    try:
        attend(backend, asked, target=target, how=How(UNTIMED))
    except InputError as error:
        if isinstance(error.__cause__, RuntimeError):
            return False
        raise
    return True


def attend(backend: str, asked: Arrays, target: Target, how: How) -> Attended:
    """The output of a backend, in f16, as PyTorch rounds it, without log-sum-exp.

    K and V are repeated for the heads that share them; this is not timed. InputError with PyTorch's reason if the
    backend does not accept this op on this machine, if PyTorch is missing, or if `sizes_of` or `device_for` raises it.
    """
    sizes, mask = sizes_of(asked), asked.mask
    if backend not in BACKENDS:
        raise InputError(f"torch has no backend {backend!r}; allowed: {', '.join(BACKENDS)}")
    torch = load("torch", EXTRA)
    device = device_for(torch, target)
    # PyTorch's own `is_causal` aligns the mask with the first KV row
    whole = asked.causal and mask is None and sizes.n_q == sizes.n_kv
    added = None if whole else visible(mask, sizes.n_q, sizes.n_kv, causal=asked.causal)
    on_q, on_k, on_v = (torch.tensor(array, device=device) for array in (asked.q, asked.k, asked.v))
    repeated = [array.repeat_interleave(sizes.group, dim=1) for array in (on_k, on_v)]
    on_mask = None if added is None else torch.tensor(added, device=device)

    def compute() -> Any:  # noqa: ANN401 (a tensor of an optional package)
        return torch.nn.functional.scaled_dot_product_attention(
            on_q, *repeated, attn_mask=on_mask, is_causal=whole, scale=asked.scale
        )

    try:
        with chosen(torch, backend), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            out = compute()
            seconds = seconds_of(torch, compute, how.timing_on(target), device)
    except RuntimeError as error:
        reasons = [str(warning.message).partition(" (Triggered")[0] for warning in said] or [str(error).strip()]
        reason = " ".join(reasons).splitlines()[0]
        raise InputError(f"torch's backend {backend} does not accept this op on {device}: {reason}") from error
    return Attended(out.cpu().numpy(), seconds=seconds)


def chosen(torch: ModuleType, backend: str) -> Any:  # noqa: ANN401 (a context manager of an optional package)
    """A context in which scaled_dot_product_attention may use only one backend."""
    return load("torch.nn.attention", EXTRA).sdpa_kernel(getattr(torch.nn.attention.SDPBackend, BACKENDS[backend]))


def visible(mask: Floats | None, n_q: int, n_kv: int, *, causal: bool) -> Halves | None:
    """The mask with additional -inf where `causal` hides a KV row; None if nothing is masked."""
    if not causal:
        return None if mask is None else np.ascontiguousarray(mask, dtype=np.float16)
    hidden = np.arange(n_kv) > np.arange(n_q)[:, None] + n_kv - n_q
    return np.where(hidden, -np.inf, 0.0 if mask is None else mask).astype(np.float16)


TRITON = "triton"
INTERPRET = "TRITON_INTERPRET"
INTERPRETED = {"ROWS": 64, "COLUMNS": 64}


def attend_in_triton(asked: Arrays, target: Target, how: How) -> Attended:
    """The kernel's output and log-sum-exp, in f32; a row that sees nothing is 0, and its log-sum-exp is -inf.

    InputError if Triton or PyTorch is not installed, or if `sizes_of`, `device_for` or `kernel_module` raises it.
    """
    sizes, mask = sizes_of(asked), asked.mask
    torch = load("torch", TRITON)
    device = device_for(torch, target)
    # The module of the kernel, interpreted or compiled. Triton decides this once, when it is imported, from an
    # environment variable. The variable is set here if there is no GPU, and stays set, because Triton reads it again
    # later. InputError if Triton has already decided otherwise.
    interpreted = device == CPU
    if not torch.cuda.is_available():
        os.environ[INTERPRET] = "1"
    load("triton", TRITON)
    kernel = load("fattn_probe.lab.kernels.triton_kernel", TRITON)
    if interpreted and not kernel.is_interpreted():
        raise InputError(f"Triton compiles for this computer's GPU; with {INTERPRET}=1 it interprets instead")
    if kernel.is_interpreted() and not interpreted:
        raise InputError(f"Triton interprets because {INTERPRET} is set; unset it to compile for the GPU")
    triton = load("triton", TRITON)
    arrays = (asked.q, asked.k, asked.v, asked.q if mask is None else mask)
    on = [torch.tensor(array, device=device) for array in arrays]
    shape = (sizes.n_seq, sizes.n_head, sizes.n_q)
    o = torch.empty((*shape, sizes.hsv), dtype=torch.float32, device=device)
    lse = torch.empty(shape, dtype=torch.float32, device=device)
    padded = [max(16, triton.next_power_of_2(size)) for size in (sizes.hsk, sizes.hsv)]

    def grid(chosen: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(sizes.n_q, chosen["ROWS"]), sizes.n_seq * sizes.n_head

    function, blocks = (kernel.attention, INTERPRETED) if device == CPU else (kernel.tuned(), {})

    def compute() -> None:
        function[grid](
            *(*on, o, lse, asked.scale, sizes.n_head, sizes.group),
            *(sizes.n_q, sizes.n_kv, sizes.hsk, sizes.hsv, *padded),
            CAUSAL=asked.causal,
            MASKED=mask is not None,
            **blocks,
        )

    with nullcontext() if device == CPU else torch.cuda.device(device):
        compute()
        seconds = seconds_of(torch, compute, how.timing_on(target), device)
    return Attended(o.cpu().numpy(), lse.cpu().numpy(), seconds)
