"""`inspect --values` and `--captures`: an op's tensors, read from the program's memory through the debugger.

The operands are compared with the inputs byte by byte; slices of any tensor can be printed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fattn_probe.base.arrays import Bytes, Floats
from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Target
from fattn_probe.cases.op import TensorView
from fattn_probe.cases.op.values import decode, strided
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.inspect.inspector import Ended, Inspector
from fattn_probe.machine.run.capture import Capture, write_capture
from fattn_probe.machine.run.runner import read_launches

SPEC = re.compile(r"(?P<name>dst|Q|K|V|mask|sinks)(?:\[(?P<slices>[-\d:, ]*)\])?")


@dataclass(frozen=True)
class Slice:
    """A part of a tensor, `K[:8, 0, 1]`; indices are in ggml's order, innermost dimension first."""

    text: str
    name: str
    index: tuple[slice | int, ...]


def parse_slice(text: str) -> Slice:
    """Parse `K` or `K[0:8, :, 1]`; raises InputError for anything else."""
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


def part(values: Floats, wanted: Slice) -> Floats:
    """The requested part of a tensor; raises InputError if an index is out of range."""
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


READ_TENSORS = "fattn_probe.daily.inspect.procedures.op:read_tensors"


@dataclass(frozen=True, eq=False)
class TensorReading:
    """The contents of memory after the op's last kernel.

    `memory` has all bytes of each tensor; `checks` compares them with the inputs; `parts` are the requested slices.
    """

    memory: Mapping[str, Bytes]
    checks: Sequence[Mapping[str, Any]]
    parts: tuple[tuple[Slice, Floats], ...]
    file: Path | None = None


def read_tensors(
    inspector: Inspector,
    case: Case,
    inputs: Mapping[str, Bytes],
    target: Target,
    *,
    wanted: Sequence[Slice] = (),
    captures: Path | None = None,
) -> TensorReading | Ended:
    """Run the whole op and read its operands and dst; if `captures` is given, writes a capture to that folder."""
    roles = ["dst", *case.op.tensors]
    if absent := [item for item in wanted if item.name not in roles]:
        raise InputError(f"--values {absent[0].text}: {case.name} has no {absent[0].name}; it has {', '.join(roles)}")
    ne = (case.op.sizes.hsv, case.op.sizes.n_head, case.op.sizes.n_q, case.op.sizes.n_seq)
    dst_view = TensorView("dst", "f32", "dst", ne, (4, 4 * ne[0], 4 * ne[0] * ne[1], 4 * ne[0] * ne[1] * ne[2]), 0)
    views = {"dst": dst_view, **case.op.tensors}
    sizes = {role: view.end - view.offset for role, view in views.items()}
    with inspector.place(case, inputs) as folder:
        ended = inspector.procedure(READ_TENSORS, {"sizes": sizes, "folder": str(folder)}, folder, target)
        if not isinstance(ended, dict):
            return ended
        memory = {role: np.fromfile(folder / role, np.uint8) for role in roles}
        launches = read_launches(folder / "launches")
    parts = []
    for item in wanted:  # the bytes begin with the tensor's first byte
        view = views[item.name]
        parts.append((item, part(strided(decode(memory[item.name], view.type), replace(view, offset=0)), item)))
    file = None
    if captures is not None:
        captures.mkdir(parents=True, exist_ok=True)
        file = captures / f"{case.name}@{str(target).replace(':', '-')}.gguf"
        provenance = inspector.session.provenance(target, case.seed) | {"read": "through the debugger"}
        dst = memory["dst"].view(np.float32).reshape(case.op.sizes.dst)
        roots = {name: data.copy() for name, data in inputs.items()}
        for name, view in case.op.tensors.items():
            roots[view.root][view.offset : view.offset + memory[name].size] = memory[name]
        ran = ("", (), target.backend, str(target), provenance)
        write_capture(Capture(case.name, case.digest, case.op, roots, dst, launches, *ran), file)
    checks = []
    for name, view in case.op.tensors.items():
        found = memory[name]
        places = np.flatnonzero(inputs[view.root][view.offset : view.offset + found.size] != found)
        first = int(places[0]) if places.size else None
        checks.append({"name": name, "bytes": int(found.size), "differing": int(places.size), "first": first})
    return TensorReading(memory, checks, tuple(parts), file)
