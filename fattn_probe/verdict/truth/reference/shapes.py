"""Check that the arrays of an op have consistent shapes."""

from typing import Any, Protocol

from fattn_probe.base.arrays import Floats
from fattn_probe.base.errors import InputError
from fattn_probe.cases.op import Sizes

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
    flat = [f"{name} has {rank} dimensions, but 4 are needed" for name, rank in ranks.items() if rank != 4]
    if flat:
        raise InputError("\n".join(flat))
    n_seq, n_head, n_q, hsk = Q.shape
    n_head_kv, n_kv, hsv = K.shape[1], K.shape[2], V.shape[3]
    found: list[tuple[bool, str]] = []
    if min(*Q.shape, *K.shape, *V.shape) < 1:
        found.append((True, f"empty tensors: Q {Q.shape}, K {K.shape}, V {V.shape}"))
    else:
        found += [
            (K.shape[3] != hsk, f"the head size is {K.shape[3]} in K but {hsk} in Q"),
            (K.shape[0] != n_seq, f"K has {K.shape[0]} sequences, but Q has {n_seq}"),
            (K.shape[:3] != V.shape[:3], f"K is {K.shape[:3]}, but V is {V.shape[:3]} (sequences, K/V heads, KV rows)"),
            (n_head % n_head_kv != 0, f"{n_head} heads are not a multiple of {n_head_kv} K/V heads"),
        ]
    if mask is not None:
        seqs, heads, rows, entries = mask.shape
        found += [
            (seqs < 1 or n_seq % seqs != 0, f"{n_seq} sequences are not a multiple of the mask's {seqs}"),
            (heads < 1 or n_head % heads != 0, f"{n_head} heads are not a multiple of the mask's {heads}"),
            (rows < n_q, f"the mask has {rows} rows for {n_q} queries"),
            (entries != n_kv, f"a mask row has {entries} entries for {n_kv} KV rows"),
        ]
    if sinks is not None:
        words = f"sinks are {sinks.shape}, but one for each of {n_head} heads is needed"
        found.append((sinks.shape != (n_head,), words))
    if problems := [words for wrong, words in found if wrong]:
        raise InputError("\n".join(problems))
    return Sizes(n_seq, n_head, n_head_kv, n_q, n_kv, hsk, hsv)
