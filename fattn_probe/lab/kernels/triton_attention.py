"""The attention kernel in Triton: on a GPU with tuned block sizes, elsewhere in Triton's interpreter."""

import os
from contextlib import nullcontext

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Target
from fattn_probe.lab.kernels.contender import How
from fattn_probe.lab.kernels.extras import CPU, Arrays, Attended, device_for, load, seconds_of, sizes_of

EXTRA = "triton"
INTERPRET = "TRITON_INTERPRET"
KERNEL = "fattn_probe.lab.kernels.triton_kernel"
INTERPRETED = {"ROWS": 64, "COLUMNS": 64}


def attend(asked: Arrays, *, target: Target, how: How) -> Attended:
    """Output and log-sum-exp of the kernel, in f32; a row that sees nothing is 0, its log-sum-exp -inf.

    InputError if Triton or PyTorch is not installed, or if `sizes_of`, `device_for` or `kernel_module` raises it.
    """
    sizes, mask = sizes_of(asked), asked.mask
    torch = load("torch", EXTRA)
    device = device_for(torch, target)
    # The module of the kernel, interpreted or compiled.
    # Triton decides once, when it is imported, by an environment variable, which stays set: it reads it again later.
    # We set it where there is no GPU. InputError if Triton decided otherwise.
    interpreted = device == CPU
    if not torch.cuda.is_available():
        os.environ[INTERPRET] = "1"
    load("triton", EXTRA)
    kernel = load(KERNEL, EXTRA)
    if interpreted and not kernel.is_interpreted():
        raise InputError(f"Triton compiles for this computer's GPU; with {INTERPRET}=1 it interprets instead")
    if kernel.is_interpreted() and not interpreted:
        raise InputError(f"Triton interprets, since {INTERPRET} is set: without it, it compiles for the GPU")
    triton = load("triton", EXTRA)
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
