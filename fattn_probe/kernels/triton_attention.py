"""The attention kernel in Triton: on a GPU with tuned block sizes, elsewhere in Triton's interpreter."""

import os
from types import ModuleType

from fattn_probe.arrays import F32, Floats, Halves
from fattn_probe.errors import InputError
from fattn_probe.kernels.extras import load, sizes_of

EXTRA = "triton"
INTERPRET = "TRITON_INTERPRET"
KERNEL = "fattn_probe.kernels.triton_kernel"
INTERPRETED = {"ROWS": 64, "COLUMNS": 64}


def attend(q: Halves, k: Halves, v: Halves, scale: float, causal: bool, mask: Floats | None = None) -> tuple[F32, F32]:
    """Output (n_seq, n_head, n_q, hsv) and log-sum-exp (n_seq, n_head, n_q) of the kernel.

    With `causal`, query i sees the KV rows up to i + n_kv - n_q. A row that sees nothing is 0, its log-sum-exp -inf.
    InputError if Triton or PyTorch is not installed, and as from `sizes_of`.
    """
    sizes = sizes_of(q, k, v, mask)
    torch = load("torch", EXTRA)
    kernel = kernel_module(has_gpu=torch.cuda.is_available())
    triton, device = load("triton", EXTRA), "cpu" if kernel.is_interpreted() else "cuda"
    on = [torch.from_numpy(array).contiguous().to(device) for array in (q, k, v, q if mask is None else mask)]
    shape = (sizes.n_seq, sizes.n_head, sizes.n_q)
    o = torch.empty((*shape, sizes.hsv), dtype=torch.float32, device=device)
    lse = torch.empty(shape, dtype=torch.float32, device=device)
    padded = [max(16, triton.next_power_of_2(size)) for size in (sizes.hsk, sizes.hsv)]

    def grid(chosen: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(sizes.n_q, chosen["ROWS"]), sizes.n_seq * sizes.n_head

    function, blocks = (kernel.attention, INTERPRETED) if device == "cpu" else (kernel.tuned(), {})
    function[grid](
        *(*on, o, lse, scale, sizes.n_head, sizes.group, sizes.n_q, sizes.n_kv, sizes.hsk, sizes.hsv, *padded),
        CAUSAL=causal,
        MASKED=mask is not None,
        **blocks,
    )
    return o.cpu().numpy(), lse.cpu().numpy()


def kernel_module(*, has_gpu: bool) -> ModuleType:
    """The module of the kernel; without a GPU, Triton interprets it.

    Triton decides once, when it is imported, by an environment variable, which stays set: it reads it again later.
    InputError if it has been imported for a GPU that is not there.
    """
    if not has_gpu:
        os.environ[INTERPRET] = "1"
    load("triton", EXTRA)
    module = load(KERNEL, EXTRA)
    if not has_gpu and not module.is_interpreted():
        raise InputError(f"Triton was imported for a GPU, and there is none: set {INTERPRET}=1 before Python starts")
    return module
