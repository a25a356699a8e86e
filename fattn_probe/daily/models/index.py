"""The index of a folder of captured ops, `index.json`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fattn_probe.base.files import replacing, writing
from fattn_probe.cases.op import Op
from fattn_probe.daily.models.recorded_op import Offer

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
    """A folder of captured ops, which takes up `bytes` on the disk.

    `complete`: the run was not interrupted. `left_out` are the names of ops that exceeded the budget. `run` describes
    the run: model, prompts, source, device.
    """

    complete: bool
    run: Mapping[str, Any]
    entries: Sequence[IndexEntry]
    left_out: Sequence[str]
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """The document of index.json."""
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
