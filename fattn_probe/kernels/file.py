"""The file with an op that a compiled kernel reads, and the one with its output (`drive.h`)."""

import struct
from pathlib import Path

import numpy as np

from fattn_probe.errors import InputError
from fattn_probe.kernels.contender import Question
from fattn_probe.op import TensorView
from fattn_probe.op.tensors import element_offset, element_strides
from fattn_probe.run.outcome import Unsupported

OPERANDS = ("Q", "K", "V", "mask")
RAN = 0


def write_question(question: Question, path: Path) -> None:
    """Write an op: sizes, scale, where its tensors lie, and the bytes of its memories."""
    op = question.op
    s = op.sizes
    roots = list(dict.fromkeys(op.operands[name].root for name in OPERANDS if name in op.operands))
    sizes = (s.n_seq, s.n_head, s.n_head_kv, s.n_q, s.n_kv, s.hsk, s.hsv, question.causal)
    places = [value for name in OPERANDS for value in place_of(op.operands.get(name), roots)]
    memories = [question.inputs[root] for root in roots]
    with path.open("wb") as file:
        file.write(struct.pack(f"<8qd{len(places)}q", *sizes, op.params.stored.scale, *places))
        file.write(struct.pack(f"<q{len(memories)}q", len(memories), *(memory.nbytes for memory in memories)))
        for memory in memories:
            memory.tofile(file)


def place_of(view: TensorView | None, roots: list[str]) -> tuple[int, ...]:
    """Where a tensor lies: its memory, its first element, and its strides of rows, heads and sequences in elements.

    A dimension of size 1 has a stride of 0: of a mask, for all heads or sequences.
    """
    if view is None:
        return (-1, 0, 0, 0, 0)
    strides = [stride if size > 1 else 0 for size, stride in zip(view.ne[1:], element_strides(view)[1:], strict=True)]
    return (roots.index(view.root), element_offset(view), *strides)


def read_answer(path: Path, question: Question) -> tuple[np.ndarray, tuple[float, ...]] | Unsupported:
    """The output and the seconds of the timed runs, or why the kernel cannot compute the op."""
    data = path.read_bytes()
    (how,) = struct.unpack_from("<q", data)
    if how != RAN:
        return Unsupported(data[8:].decode(errors="replace"))
    shape = question.op.sizes.dst
    end = 8 + 4 * int(np.prod(shape))
    if len(data) < end or (len(data) - end) % 8:
        raise InputError(f"{path}: the kernel's output has {len(data)} bytes, {end} were expected")
    dst = np.frombuffer(data[8:end], np.float32).reshape(shape)
    return dst, tuple(np.frombuffer(data[end:], np.float64).tolist())
