"""Tensors in the program's memory: compared with the inputs byte by byte, and printed as slices."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fattn_probe.base.arrays import Bytes, Floats
from fattn_probe.base.errors import InputError
from fattn_probe.cases.op import TensorView
from fattn_probe.cases.op.encoding import decode
from fattn_probe.cases.op.values import strided
from fattn_probe.cases.scenario import Case

SPEC = re.compile(r"(?P<name>dst|Q|K|V|mask|sinks)(?:\[(?P<slices>[-\d:, ]*)\])?")


@dataclass(frozen=True)
class Slice:
    """A part of a tensor, `K[:8, 0, 1]`; indices in ggml's order, the innermost dimension first."""

    text: str
    name: str
    index: tuple[slice | int, ...]


def parse_slice(text: str) -> Slice:
    """Parse `K` or `K[0:8, :, 1]`; InputError for anything else."""
    match = SPEC.fullmatch(text.strip())
    if match is None:
        raise InputError(f"--values {text!r} is not a tensor (dst, Q, K, V, mask, sinks), or a part such as K[:8,0,1]")
    words = [word.strip() for word in (match["slices"] or "").split(",") if word.strip()]
    return Slice(text, match["name"], tuple(_index(text, word) for word in words))


def _index(text: str, word: str) -> slice | int:
    try:
        if ":" not in word:
            return int(word)
        return slice(*(int(part) if part else None for part in word.split(":")))
    except (ValueError, TypeError) as error:
        raise InputError(f"--values {text!r}: {word!r} is not an index such as 3, :8 or 0:64:2") from error


def check_bytes(case: Case, inputs: Mapping[str, Bytes], memory: Mapping[str, Bytes]) -> list[dict[str, Any]]:
    """Compare each operand's bytes in the program's memory with the case's inputs.

    Keys: `name`, `bytes`, the number of `differing` ones, and the `first` of these, None without any.
    """
    checks = []
    for name, view in case.op.tensors.items():
        found = memory[name]
        places = np.flatnonzero(inputs[view.root][view.offset : view.offset + found.size] != found)
        first = int(places[0]) if places.size else None
        checks.append({"name": name, "bytes": int(found.size), "differing": int(places.size), "first": first})
    return checks


def values_of(view: TensorView, memory: Bytes) -> Floats:
    """A tensor's values in NumPy's order, (ne[3], ..., ne[0]), from its bytes, first to last."""
    start = TensorView(view.name, view.type, view.root, view.ne, view.nb, 0)
    return strided(decode(memory, view.type), start)


def part(values: Floats, wanted: Slice) -> Floats:
    """The requested part of a tensor; InputError if an index is out of range."""
    ne = values.shape[::-1]
    for axis, (at, size) in enumerate(zip(wanted.index, ne, strict=False)):
        if isinstance(at, int) and not -size <= at < size:
            raise InputError(f"--values {wanted.text}: {wanted.name} has ne[{axis}] = {size}: there is no index {at}")
    index = (*wanted.index, *(slice(None),) * (values.ndim - len(wanted.index)))
    try:
        found: Floats = np.asarray(values[tuple(reversed(index))])
    except IndexError as error:
        raise InputError(f"--values {wanted.text}: {wanted.name} has {len(ne)} dimensions: {error}") from error
    return found


def as_text(values: Floats) -> str:
    """The numbers as NumPy prints them; the middle of a long axis is left out."""
    return np.array2string(values, precision=6, threshold=200, edgeitems=4, max_line_width=100, suppress_small=False)
