"""The lines of llama.cpp that are each step of attention, found in a tree by what the code says (`lines.yaml`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

import yaml

from fattn_probe.base.tables import Table
from fattn_probe.daily.inspect.anchors import COMMON, Anchor, locate
from fattn_probe.llama.launch.families import MMA_F16, TILE, VEC
from fattn_probe.llama.source import Tree
from fattn_probe.llama.source.features import CUDA

KERNELS: Mapping[str, str] = {
    "mma": MMA_F16.file,
    "tile": TILE.file,
    "vec": VEC.file,
    "fixup": COMMON,
    "combine": COMMON,
}
"""Files in ggml-cuda/."""


@dataclass(frozen=True)
class StepLines:
    """A step, and its line (`fattn-vec.cuh:284`) by kernel; None where the tree has no such line."""

    step: str
    places: Mapping[str, str | None]


def step_lines_of(tree: Tree) -> tuple[StepLines, ...]:
    """Find each step in a tree."""
    steps = yaml.safe_load((files("fattn_probe.lab.study") / "lines.yaml").read_text(encoding="utf-8"))
    anchors = tuple(
        Anchor(f"{step}: {kernel}", KERNELS[kernel], pattern, "")
        for step, patterns in steps.items()
        for kernel, pattern in patterns.items()
    )
    found = locate(tree.root / CUDA, anchors).locations
    return tuple(
        StepLines(step, {kernel: next(iter(found[f"{step}: {kernel}"]), None) for kernel in patterns})
        for step, patterns in steps.items()
    )


def lines_table(steps: tuple[StepLines, ...]) -> Table:
    """The steps, each with its lines; parts of mma blocks are added by the fixup kernel, the others by combine."""
    columns = {"mma": "fixup", "tile": "combine", "vec": "combine"}
    rows = (
        (one.step, *(one.places.get(name, one.places.get(after)) or "-" for name, after in columns.items()))
        for one in steps
    )
    return Table(("step", *columns), tuple(rows))
