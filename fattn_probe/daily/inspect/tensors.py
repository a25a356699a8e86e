"""`inspect --values` and `--captures`: an op's tensors, read from the program's memory through the debugger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fattn_probe.base.arrays import Bytes, Floats
from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Target
from fattn_probe.cases.op import TensorView
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.inspect.inspector import Ended, Inspector
from fattn_probe.daily.inspect.tensor_values import Slice, check_bytes, part, values_of
from fattn_probe.machine.run.capture import Capture, write_capture
from fattn_probe.machine.run.runner import read_launches

READ_TENSORS = "fattn_probe.daily.inspect.procedures.tensors:read_tensors"


@dataclass(frozen=True, eq=False)
class TensorReading:
    """The contents of memory after the op's last kernel.

    `memory` has each tensor's bytes, first to last; `checks` compares them with the inputs; `parts` are the requested
    slices.
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
    """Run the whole op and read its operands and dst; writes a capture of them to the folder `captures`, if given."""
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
    parts = tuple((item, part(values_of(views[item.name], memory[item.name]), item)) for item in wanted)
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
    return TensorReading(memory, check_bytes(case, inputs, memory), parts, file)
