"""The lines of llama.cpp that implement each step of attention, found in a tree by their text."""

from collections.abc import Mapping
from dataclasses import dataclass

from fattn_probe.base.tables import Table
from fattn_probe.daily.inspect.anchors import COMMON, Anchor, locate
from fattn_probe.daily.inspect.replay.replay import line_patterns
from fattn_probe.llama.launch.families import MMA_F16, TILE, VEC
from fattn_probe.llama.source import Tree
from fattn_probe.llama.source.features import CUDA

STEPS = (
    "S = Q K^T",
    "m = max(m, S)",
    "P = e^(S - m)",
    "rescale = e^(m_old - m)",
    "l = rescale l + sum of P",
    "O = rescale O",
    "O = O + P V",
    "O = O / l, undivided tile",
    "store m, l of a part",
    "store O of a part",
    "add parts",
    "O = O / l",
)
KERNELS: Mapping[str, tuple[str, str]] = {
    "mma": (MMA_F16.name, MMA_F16.file),
    "tile": (TILE.name, TILE.file),
    "vec": (VEC.name, VEC.file),
    "fixup": (MMA_F16.name, COMMON),
    "combine": (TILE.name, COMMON),
}
"""The family of a kernel, or of those that it runs after, and its file in ggml-cuda/."""


@dataclass(frozen=True)
class StepLines:
    """A step, and its line (`fattn-vec.cuh:284`) by kernel; None where the tree has no such line."""

    step: str
    places: Mapping[str, str | None]


def step_lines_of(tree: Tree) -> tuple[StepLines, ...]:
    """Find each step in a tree."""
    patterns = {(what, family, file): pattern for family, _, what, file, pattern in line_patterns()}
    of_step = {step: [name for name, where in KERNELS.items() if (step, *where) in patterns] for step in STEPS}
    anchors = tuple(
        Anchor(f"{step}: {name}", KERNELS[name][1], patterns[step, *KERNELS[name]], "")
        for step, names in of_step.items()
        for name in names
    )
    found = locate(tree.root / CUDA, anchors).locations
    return tuple(
        StepLines(step, {name: next(iter(found[f"{step}: {name}"]), None) for name in names})
        for step, names in of_step.items()
    )


def lines_table(steps: tuple[StepLines, ...]) -> Table:
    """The steps, each with its lines; parts of mma blocks are added by the fixup kernel, the others by combine."""
    columns = {"mma": "fixup", "tile": "combine", "vec": "combine"}
    rows = (
        (one.step, *(one.places.get(name, one.places.get(after)) or "-" for name, after in columns.items()))
        for one in steps
    )
    return Table(("step", *columns), tuple(rows))
