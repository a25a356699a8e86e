"""Launch records: the kernels that ran, their geometry, and their order."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device.origin import UNKNOWN, Origin, parse_origin
from fattn_probe.llama.launch.families import BY_KERNEL, Family, renamed_kernel
from fattn_probe.llama.launch.name import parse_kernel_name

Dim3 = tuple[int, int, int]
Types = Mapping[int, str]
Names = Mapping[str, Sequence[str]]


@dataclass(frozen=True, eq=False)
class LaunchRecord:
    """One kernel launch.

    `template_args` are (name, value) pairs in the template's order; `shared` is the dynamic shared memory in bytes.
    `origin` is the origin of `regs` and `static_shared`, and therefore of `max_blocks_per_sm`. `renamed` is the usual
    name of an attention kernel that the source calls differently, otherwise empty. Two records are equal if
    kernel, template values, geometry and shared memory are equal. Order, register counts (perhaps only assumed by the
    simulator) and parameter names (missing in CUDA's form) are not compared.
    """

    order: int
    kernel: str
    template_args: tuple[tuple[str, str], ...]
    grid: Dim3
    block: Dim3
    shared: int
    regs: int | None = None
    static_shared: int | None = None
    max_blocks_per_sm: int | None = None
    origin: Origin = UNKNOWN
    text: str = field(default="", repr=False)
    renamed: str = ""

    @property
    def values(self) -> tuple[str, ...]:
        """The template arguments without their names."""
        return tuple(value for _, value in self.template_args)

    @property
    def family(self) -> Family | None:
        """The family of an attention kernel; None for other kernels."""
        return BY_KERNEL.get(self.renamed or self.kernel)

    @property
    def spelling(self) -> str:
        """The kernel as `flash_attn_ext_f16<64,64,8,8,false,false,false>`."""
        return f"{self.kernel}<{','.join(self.values)}>" if self.template_args else self.kernel

    @property
    def geometry(self) -> str:
        """The geometry as `grid 8x1x1 of 32x4x1, 17536 B`: blocks, threads, dynamic shared memory."""
        grid, block = ("x".join(map(str, size)) for size in (self.grid, self.block))
        return f"grid {grid} of {block}, {self.shared} B"

    @property
    def key(self) -> tuple[object, ...]:
        """The fields on which two engines must agree."""
        return (self.kernel, self.values, self.grid, self.block, self.shared)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LaunchRecord) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def document(self) -> dict[str, Any]:
        """The launch for a JSON document, template arguments keyed by name; `parse_launches` reads it back."""
        return {
            "order": self.order,
            "kernel": self.kernel,
            "template_args": dict(self.template_args),
            "grid": list(self.grid),
            "block": list(self.block),
            "shared": self.shared,
            "regs": self.regs,
            "max_blocks_per_sm": self.max_blocks_per_sm,
            "origin": str(self.origin),
            **({"renamed": self.renamed} if self.renamed else {}),
        }

    def to_json(self) -> str:
        """The JSON line that the engine wrote, with the kernel's name in the engine's form."""
        optional = {name: getattr(self, name) for name in ("regs", "static_shared", "max_blocks_per_sm")}
        optional["origin"] = None if self.origin == UNKNOWN else str(self.origin)
        line = {"order": self.order, "kernel": self.text or self.spelling, "grid": self.grid, "block": self.block}
        return json.dumps(line | {"shared": self.shared} | {k: v for k, v in optional.items() if v is not None})


def in_words(launches: Iterable[LaunchRecord]) -> str:
    """The properties on which engines must agree, as text: `kernel<values>: grid 8x1x1 of 32x4x1, 17536 B; ...`."""
    return "; ".join(f"{launch.spelling}: {launch.geometry}" for launch in launches)


def parse_launches(text: str, *, types: Types | None = None, names: Names | None = None) -> tuple[LaunchRecord, ...]:
    """The launches of a graph's first run, from an engine's JSON lines and the runner's `{"run": n}` marks.

    Later runs launch the same kernels again, or replay a CUDA graph, which leaves no launch records.
    """
    found = list[LaunchRecord]()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"launch records, line {number}: {error}: {line[:200]}") from error
        if entry.get("run", 0) > 0:
            break
        if "kernel" not in entry:
            continue
        kernel, arguments = entry["kernel"], tuple(entry.get("template_args", {}).items())
        if "template_args" not in entry:
            name = parse_kernel_name(kernel, types=types, names=names)
            kernel, arguments = name.base, name.args
        record = LaunchRecord(
            order=entry["order"],
            kernel=kernel,
            template_args=arguments,
            grid=(*entry["grid"],),
            block=(*entry["block"],),
            shared=entry["shared"],
            regs=entry.get("regs"),
            static_shared=entry.get("static_shared"),
            max_blocks_per_sm=entry.get("max_blocks_per_sm"),
            origin=parse_origin(entry["origin"]) if "origin" in entry else UNKNOWN,
            text=entry["kernel"],
            renamed=entry.get("renamed", "") or renamed_kernel(kernel, arguments, names),
        )
        found.append(record)
    return tuple(found)
