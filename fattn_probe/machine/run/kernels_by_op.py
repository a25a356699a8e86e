"""The kernels that ops need on a target, stored in the cache."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fattn_probe.base.cache import Kind
from fattn_probe.base.digest import short
from fattn_probe.base.documents import Document
from fattn_probe.cases.device import Target
from fattn_probe.cases.op import Op
from fattn_probe.llama.build.stamp import own_stamp
from fattn_probe.machine.run.fingerprint import of_source, on_target
from fattn_probe.machine.run.session import RunOptions

KERNELS = Kind("instances", "the list of ops' kernels")
DOCUMENT = Document("a list of ops' kernels", dict[str, tuple[str, ...]])


def op_digest(op: Op) -> str:
    """16 hex digits of an op's parameters, tensors and roots; its data do not affect the choice of a kernel."""
    return short(json.dumps(op.to_json(), sort_keys=True))


@dataclass(frozen=True)
class KernelsByOp:
    """A document with the kernel cases that ops need, by `op_digest`, for one source on one GPU."""

    key: str

    @classmethod
    def of(cls, options: RunOptions, target: Target) -> "KernelsByOp":
        """The document for a source with its patches on a target; the choice depends on these and on the op."""
        return cls(on_target(of_source(options), target).kernels)

    @classmethod
    def similar(cls, options: RunOptions, target: Target) -> "KernelsByOp":
        """The document of the source's last run, with other patches or before an edit: a guess."""
        spelled = replace(of_source(options), tree=options.tree.spec if options.tree else "", patches=())
        return cls(on_target(spelled, target).kernels)

    @classmethod
    def launches(cls, options: RunOptions, target: Target) -> "KernelsByOp":
        """The document with the launches of ops, as JSON lines, for a source with its patches on a target."""
        return cls(replace(on_target(of_source(options), target), stamp=own_stamp()).launches)

    def read(self) -> dict[str, tuple[str, ...]]:
        """The contents of the document; empty if it is missing or damaged."""
        return DOCUMENT.remembered(KERNELS, self.key) or {}

    def write(self, names: Mapping[str, tuple[str, ...]]) -> None:
        """Rewrite the document; a read-only cache is not an error."""
        DOCUMENT.remember(KERNELS, self.key, dict(names))
