"""Check that the arrays of an op have consistent shapes."""

from typing import Any, Protocol

from fattn_probe.arrays import Floats
from fattn_probe.errors import InputError
from fattn_probe.op import Sizes

Shape = tuple[int, ...]


class Rows(Protocol):
    """K or V as the reference reads it: an array, or an object that generates rows on access."""

    @property
    def shape(self) -> Shape:
        """(n_seq, n_head_kv, n_kv, head size)."""

    def __getitem__(self, at: tuple[int, int, slice], /) -> Any:  # noqa: ANN401 (an array's own type says Any)
        """Float rows (kv, head size) of a sequence and a head."""


def check_shapes(Q: Floats, K: Rows, V: Rows, mask: Floats | None, sinks: Floats | None) -> Sizes:
    """The sizes of these arrays.

    InputError with every inconsistency where ggml_flash_attn_ext or the op itself would assert.
    """
    ranks = {"Q": Q.ndim, "K": len(K.shape), "V": len(V.shape), "mask": 4 if mask is None else mask.ndim}
    flat = [f"{name} has {rank} dimensions, 4 are needed" for name, rank in ranks.items() if rank != 4]
    if flat:
        raise InputError("\n".join(flat))
    n_seq, n_head, n_q, hsk = Q.shape
    n_head_kv, n_kv, hsv = K.shape[1], K.shape[2], V.shape[3]
    problems = _core_problems(Q, K, V)
    if mask is not None:
        problems += _mask_problems(mask, Q.shape, n_kv)
    if sinks is not None and sinks.shape != (n_head,):
        problems.append(f"sinks are {sinks.shape}, one for each of {n_head} heads is needed")
    if problems:
        raise InputError("\n".join(problems))
    return Sizes(n_seq, n_head, n_head_kv, n_q, n_kv, hsk, hsv)


def _core_problems(Q: Floats, K: Rows, V: Rows) -> list[str]:
    """Inconsistencies between Q, K and V."""
    problems = []
    if min(*Q.shape, *K.shape, *V.shape) < 1:
        return [f"empty tensors: Q {Q.shape}, K {K.shape}, V {V.shape}"]
    if K.shape[3] != Q.shape[3]:
        problems.append(f"head size of K is {K.shape[3]}, of Q {Q.shape[3]}")
    if K.shape[0] != Q.shape[0]:
        problems.append(f"K has {K.shape[0]} sequences, Q {Q.shape[0]}")
    if K.shape[:3] != V.shape[:3]:
        problems.append(f"K is {K.shape[:3]}, V {V.shape[:3]} (sequences, K/V heads, KV rows)")
    if Q.shape[1] % K.shape[1]:
        problems.append(f"{Q.shape[1]} heads are not a multiple of {K.shape[1]} K/V heads")
    return problems


def _mask_problems(mask: Floats, q_shape: Shape, n_kv: int) -> list[str]:
    """Inconsistencies between the mask (sequences, heads, query rows, KV rows) and the other tensors."""
    problems = []
    mask_seq, mask_heads, mask_rows, mask_kv = mask.shape
    n_seq, n_head, n_q, _ = q_shape
    if mask_seq < 1 or n_seq % mask_seq:
        problems.append(f"{n_seq} sequences are not a multiple of the mask's {mask_seq}")
    if mask_heads < 1 or n_head % mask_heads:
        problems.append(f"{n_head} heads are not a multiple of the mask's {mask_heads}")
    if mask_rows < n_q:
        problems.append(f"the mask has {mask_rows} rows for {n_q} queries")
    if mask_kv != n_kv:
        problems.append(f"a mask row has {mask_kv} entries for {n_kv} KV rows")
    return problems
