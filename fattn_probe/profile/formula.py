"""What FlashAttention-2's formula says that a launch reads and writes, beside what it did."""

from collections.abc import Iterable

from fattn_probe.launch.kernel import columns_of_tile
from fattn_probe.launch.record import LaunchRecord
from fattn_probe.op import Op
from fattn_probe.op.ggml_types import block_size, type_size
from fattn_probe.profile.counts import Traffic
from fattn_probe.study.formulas import Sizes, flash_attention_2
from fattn_probe.study.problem import count


def formula_traffic(op: Op, launches: Iterable[LaunchRecord]) -> tuple[Traffic, ...]:
    """Bytes by tensor of an attention kernel that follows FlashAttention-2; none without such a kernel.

    A tile has `ncols1` queries (B_r) of `ncols2` heads, which read one K, V and mask. dst is written once.
    """
    columns = next(filter(None, map(columns_of_tile, launches)), None)
    if columns is None:
        return ()
    s, (ncols1, ncols2) = op.sizes, columns
    formula = flash_attention_2(Sizes(s.n_q, s.n_kv, s.hsk, s.hsv, op.has_mask), ncols1)
    elements = {term.of: term.value for term in formula.reads}
    heads = s.n_seq * s.n_head
    tiles = s.n_seq * s.n_head_kv * count(s.group, ncols2)
    read = {"Q": heads * elements["Q"], "mask": tiles * elements.get("mask", 0)}
    of_K = tiles * elements["K, V"] * s.hsk // (s.hsk + s.hsv)
    read |= {"K": of_K, "V": tiles * elements["K, V"] - of_K}
    found = [Traffic(name, sized(op, name, number), 0) for name, number in read.items() if name in op.tensors]
    return (*found, Traffic("dst", 0, 4 * heads * s.n_q * s.hsv))


def sized(op: Op, name: str, elements: int) -> int:
    """Bytes of elements of a tensor."""
    kind = op.tensors[name].type
    return elements * type_size(kind) // block_size(kind)
