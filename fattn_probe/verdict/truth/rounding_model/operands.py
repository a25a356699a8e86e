"""A case's inputs as the kernels read them: dequantised tensors, ALiBi slopes, the scale divided by the softcap."""

from dataclasses import dataclass
from math import prod

import numpy as np

from fattn_probe.base.arrays import F32, Bytes
from fattn_probe.cases.op.op import TensorView, row_size
from fattn_probe.cases.op.values import decode, strided
from fattn_probe.cases.scenario import Case
from fattn_probe.verdict.truth.rounding_model.arithmetic import FloatFunctions, functions_of
from fattn_probe.verdict.truth.rounding_model.quantised import ZERO_CODE, Codes, codes_of

Inputs = dict[str, Bytes]


@dataclass(frozen=True)
class KernelOperands:
    """The tensors as float32, `ne` reversed: Q (n_seq, n_head, n_q, hsk), K and V (n_seq, n_head_kv, n_kv, ...).

    K and V are dequantised; the mask is (n_seq or 1, n_q or more, n_kv); sinks and slopes are (n_head). `codes` has the
    stored integers and scales of a quantised K.
    """

    Q: F32
    K: F32
    V: F32
    mask: F32 | None
    sinks: F32 | None
    slopes: F32
    scale: np.float32
    logit_softcap: np.float32
    codes: Codes | None = None

    @property
    def group(self) -> int:
        """The number of query heads per K/V head (`gqa_ratio`)."""
        return int(self.Q.shape[1] // self.K.shape[1])


def operands_of(case: Case, inputs: Inputs, arch: int) -> KernelOperands:
    """The operands of a case; the scale is divided by the softcap, as in upstream's host code."""
    Q, K, V = (_converted(case.op.tensors[name], inputs) for name in "QKV")
    mask = _floats(case.op.operands["mask"], inputs)[:, 0] if case.op.has_mask else None
    sinks = _floats(case.op.tensors["sinks"], inputs).ravel() if case.op.has_sinks else None
    softcap = np.float32(case.op.params.logit_softcap)
    scale = np.float32(case.op.params.scale)
    return KernelOperands(
        Q=Q,
        K=K,
        V=V,
        mask=mask,
        sinks=sinks,
        slopes=alibi_slopes(case.op.sizes.n_head, case.op.params.max_bias, functions_of(arch)),
        scale=scale / softcap if softcap != 0 else scale,
        logit_softcap=softcap,
        codes=codes_of(case, inputs) if case.op.type_K in ZERO_CODE else None,
    )


def _floats(view: TensorView, inputs: Inputs) -> F32:
    """The values of a tensor, `ne` reversed."""
    return np.ascontiguousarray(strided(decode(inputs[view.root], view.type), view))


def _converted(view: TensorView, inputs: Inputs) -> F32:
    """The values as ggml converts them: a contiguous q4_0 with multiply-adds, so zeros are positive (for RDNA3)."""
    values = _floats(view, inputs)
    whole = view.end - view.offset == row_size(view.type, prod(view.ne))
    return values + np.float32(0) if view.type == "q4_0" and whole else values


def alibi_slopes(n_head: int, max_bias: float, functions: FloatFunctions) -> F32:
    """The ALiBi slope of each head, (n_head): powers of one base for 2^floor(log2(n_head)) heads, then of another."""
    if max_bias <= 0:
        return np.ones(n_head, np.float32)
    first = 1 << (n_head.bit_length() - 1)
    head = np.arange(n_head)
    exponent = np.where(head < first, head + 1, 2 * (head - first) + 1).astype(np.float32)
    bases = [np.exp2(-np.float32(bias) / np.float32(first)) for bias in (max_bias, max_bias / 2)]
    return functions.power(np.where(head < first, bases[0], bases[1]).astype(np.float32), exponent)
