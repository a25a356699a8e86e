"""PyTorch's scaled_dot_product_attention, with each of its backends that is there."""

import warnings
from types import ModuleType
from typing import Any

import numpy as np

from fattn_probe.arrays import Floats, Halves
from fattn_probe.errors import InputError
from fattn_probe.kernels.extras import load, sizes_of

EXTRA = "torch"
BACKENDS = {
    "math": "MATH",
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
}
"""Our names, and those of torch.nn.attention.SDPBackend."""


def backends() -> tuple[str, ...]:
    """The backends that compute a small op in f16 on this machine: on its GPU, or else on its CPU.

    InputError if PyTorch is not installed.
    """
    small = np.zeros((1, 1, 16, 64), np.float16)
    return tuple(name for name in BACKENDS if computes(name, small))


def computes(backend: str, small: Halves) -> bool:
    """Whether a backend takes an op without a mask."""
    try:
        attend(backend, small, small, small, 1.0, None)
    except InputError as error:
        if isinstance(error.__cause__, RuntimeError):
            return False
        raise
    return True


def attend(
    backend: str, q: Halves, k: Halves, v: Halves, scale: float, mask: Floats | None, *, causal: bool = False
) -> Floats:
    """Output of a backend, in f16 (n_seq, n_head, n_q, hsv), as PyTorch rounds it.

    With `causal`, query i sees the KV rows up to i + n_kv - n_q. InputError with PyTorch's reason if the backend does
    not take this op on this machine, if PyTorch is not installed, and as from `sizes_of`.
    """
    sizes = sizes_of(q, k, v, mask)
    if backend not in BACKENDS:
        raise InputError(f"torch has no backend {backend!r}; allowed: {', '.join(BACKENDS)}")
    torch = load("torch", EXTRA)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    whole = (
        causal and mask is None and sizes.n_q == sizes.n_kv
    )  # PyTorch's own `is_causal` counts from the first KV row
    added = None if whole else visible(mask, sizes.n_q, sizes.n_kv, causal=causal)
    on_q, on_k, on_v = (torch.from_numpy(array).to(device) for array in (q, k, v))
    try:
        with chosen(torch, backend), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            out = torch.nn.functional.scaled_dot_product_attention(
                on_q,
                on_k.repeat_interleave(sizes.group, dim=1),
                on_v.repeat_interleave(sizes.group, dim=1),
                attn_mask=None if added is None else torch.from_numpy(added).to(device),
                is_causal=whole,
                scale=scale,
            )
    except RuntimeError as error:
        reasons = [str(warning.message).partition(" (Triggered")[0] for warning in said] or [str(error).strip()]
        reason = " ".join(reasons).splitlines()[0]
        raise InputError(f"torch's backend {backend} does not take this op on {device}: {reason}") from error
    array: Floats = out.cpu().numpy()
    return array


def chosen(torch: ModuleType, backend: str) -> Any:  # noqa: ANN401 (a context manager of an optional package)
    """A context in which scaled_dot_product_attention may use only one backend."""
    attention = load("torch.nn.attention", EXTRA)
    return attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, BACKENDS[backend]))


def visible(mask: Floats | None, n_q: int, n_kv: int, *, causal: bool) -> Halves | None:
    """The mask with -inf, too, where `causal` hides a KV row; None for no mask."""
    if not causal:
        return None if mask is None else np.ascontiguousarray(mask, dtype=np.float16)
    hidden = np.arange(n_kv) > np.arange(n_q)[:, None] + n_kv - n_q
    return np.where(hidden, -np.inf, 0.0 if mask is None else mask).astype(np.float16)
