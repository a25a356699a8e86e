"""The kernels that ops need on a target, remembered in the cache."""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fattn_probe.cache import cache_dir
from fattn_probe.device import Target
from fattn_probe.files import replacing
from fattn_probe.op import Op
from fattn_probe.run.gpu import gpu_name
from fattn_probe.run.provenance import version
from fattn_probe.run.session import RunOptions


def op_digest(op: Op) -> str:
    """16 hex digits of an op's parameters, tensors and roots; its data do not affect the choice of a kernel."""
    return hashlib.sha256(json.dumps(op.to_json(), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class KernelsByOp:
    """A file with the kernel cases that ops need, by `op_digest`, for one source on one GPU."""

    path: Path

    @classmethod
    def of(cls, options: RunOptions, target: Target) -> "KernelsByOp":
        """The file for a source with its patches on a target, on which the choice depends besides the op."""
        tree = options.tree.digest if options.tree else ""
        return cls._at(tree, [patch.digest for patch in options.patches], options, target)

    @classmethod
    def similar(cls, options: RunOptions, target: Target) -> "KernelsByOp":
        """The file of a source as it was run last, with other patches or before an edit: a guess."""
        return cls._at(options.tree.spec if options.tree else "", [], options, target)

    @classmethod
    def _at(cls, source: str, patches: list[str], options: RunOptions, target: Target) -> "KernelsByOp":
        device = target.device.spec() if target.device else gpu_name(target.gpu)
        parts = [version("fattn-probe"), source, patches, sorted(options.quants), device]
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
        return cls(cache_dir() / "kernels" / f"{digest}.json")

    def read(self) -> dict[str, tuple[str, ...]]:
        """The contents of the file; empty if it is missing or damaged."""
        try:
            found = json.loads(self.path.read_text())
            return {str(digest): tuple(map(str, names)) for digest, names in found.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def write(self, names: Mapping[str, tuple[str, ...]]) -> None:
        """Rewrite the file; a read-only cache is not an error."""
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as part:
                part.write_text(json.dumps(names))
