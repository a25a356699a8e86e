"""An op as fattn-capture describes it, and the capture made from it."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fattn_probe.base.arrays import Bytes
from fattn_probe.base.digest import short
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import replacing, writing
from fattn_probe.cases.op import Op, Params, Root, TensorView
from fattn_probe.cases.op.case_file import CaseFile
from fattn_probe.cases.op.op import TYPE_NAMES
from fattn_probe.machine.run.capture import Capture

DIGEST_DIGITS = 16


@dataclass(frozen=True)
class Offer:
    """An op about to be computed.

    `step` is the number of the evaluation, `part` the number of the micro-batch in it; `phase`: `prompt` or `generate`.
    `bytes` is the size of its operands and output, `most` their size with a full KV cache.
    """

    layer: int
    step: int
    part: int
    phase: str
    bytes: int
    most: int

    @property
    def name(self) -> str:
        """`layer-03-step-0002`."""
        part = f"-part-{self.part}" if self.part else ""
        return f"layer-{self.layer:02}-step-{self.step:04}{part}"


def case_of_op(name: str, described: Mapping[str, Any], raw: Bytes) -> CaseFile:
    """Make the case file of an op: its parameters and views, and the bytes of its roots, from `raw`.

    Raises InputError for a type that fattn-probe does not know.
    """
    views = {}
    for key, view in described["views"].items():
        if view["type"] not in TYPE_NAMES:
            raise InputError(f"{key} has type {view['type']}, allowed: {', '.join(TYPE_NAMES)}")
        place = view["root"], tuple(view["ne"]), tuple(view["nb"]), view["offset"]
        views[key] = TensorView(key, view["type"], *place)
    roots = {key: Root(key, root["type"], tuple(root["ne"])) for key, root in described["roots"].items()}
    inputs = {key: stored_bytes(root, raw) for key, root in described["roots"].items()}
    op_params = described["params"]
    scale, max_bias, logit_softcap = struct.unpack("<3f", struct.pack("<3i", *op_params[:3]))
    op = Op(Params(scale, max_bias, logit_softcap, prec=op_params[3], n_kv_max=op_params[4]), views, roots)
    return CaseFile(name, digest_of(op, inputs), op, inputs)


def capture_of_op(case: CaseFile, described: Mapping[str, Any], raw: Bytes, provenance: Mapping[str, str]) -> Capture:
    """Make the capture of an op with the output that the model computed, without times or launch records."""
    dst = stored_bytes(described["dst"], raw).view(np.float32).reshape(described["dst"]["ne"][::-1])
    backend = described["backend"]
    return Capture(case.name, case.digest, case.op, case.inputs, dst, (), "wall", (), backend, backend, provenance)


def stored_bytes(place: Mapping[str, Any], raw: Bytes) -> Bytes:
    """Copy the bytes of a root or of the output."""
    return raw[place["place"] : place["place"] + place["size"]]


def digest_of(op: Op, inputs: Mapping[str, Bytes]) -> str:
    """A digest of 16 hex digits that depends only on the op and the input bytes."""
    told = json.dumps(op.to_json(), sort_keys=True)
    return short((told, *(inputs[name].data for name in sorted(inputs))), DIGEST_DIGITS)


INDEX = "index.json"
VERSION = 1


@dataclass(frozen=True)
class IndexEntry:
    """A captured op: its file in the folder, its place in the model, and its properties."""

    file: str
    digest: str
    offer: Offer
    op: Op

    def to_json(self) -> dict[str, Any]:
        """Keys: file, digest, layer, step, part, phase, bytes, sizes, types, params."""
        told = {key: value for key, value in asdict(self.offer).items() if key != "most"}
        types = {name: view.type for name, view in self.op.tensors.items()}
        return (
            {"file": self.file, "digest": self.digest}
            | told
            | {"sizes": asdict(self.op.sizes), "types": types, "params": asdict(self.op.params)}
        )


@dataclass(frozen=True)
class Index:
    """The index of a folder of captured ops; the folder takes up `bytes` on disk.

    `complete`: the run was not interrupted. `left_out` are the names of ops that exceeded the budget. `run` describes
    the run: model, prompts, source, device.
    """

    complete: bool
    run: Mapping[str, Any]
    entries: Sequence[IndexEntry]
    left_out: Sequence[str]
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """The content of index.json."""
        ops = [entry.to_json() for entry in self.entries]
        return {
            "version": VERSION,
            "complete": self.complete,
            **self.run,
            "bytes": self.bytes,
            "left_out": list(self.left_out),
            "ops": ops,
        }

    def write(self, folder: Path) -> None:
        """Write the document completely or not at all."""
        path = folder / INDEX
        with writing(path), replacing(path) as part:
            part.write_text(json.dumps(self.to_json(), indent=1) + "\n")
