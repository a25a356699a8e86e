"""The lines of llama.cpp's source that do each step of attention, found in a tree by their text."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from fattn_probe.daily.inspect.anchors import matching
from fattn_probe.daily.inspect.replay.replay import KINDS, SourceLine, StepKind
from fattn_probe.llama.launch.families import Family
from fattn_probe.llama.source import Tree
from fattn_probe.llama.source.features import CUDA
from fattn_probe.llama.source.patches import Patch, plan


@cache
def line_patterns() -> tuple[tuple[str, ...], ...]:
    """The lines of the source that belong to steps: family, kind, what, file, pattern. `what` is the papers' step."""
    lines = (files("fattn_probe.daily.inspect.replay") / "source_lines.csv").read_text(encoding="utf-8").splitlines()
    return tuple(tuple(row) for row in csv.reader(lines[1:]))


def kinds_of(family: Family, tree: Tree | None, patches: Sequence[Patch] = ()) -> tuple[StepKind, ...]:
    """The kinds of steps of a family's kernels, with their lines of the patched tree."""
    changed: dict[Path, str | None] = {}
    for patch in patches:
        assert tree is not None
        changed = plan(patch, tree.root, changed)
    lines: dict[str, list[SourceLine]] = {}
    for name, kind, what, file, pattern in line_patterns():
        if name == family.name:
            path = (tree.root if tree else Path()) / CUDA / file
            if path not in changed:
                changed[path] = path.read_text(errors="replace") if tree and path.is_file() else ""
            text = (changed[path] or "").splitlines()
            at = next(matching(text, pattern), 0)
            found = SourceLine(what, f"{file}:{at}", text[at - 1].strip()) if at else SourceLine(what, "", "")
            lines.setdefault(kind, []).append(found)
    return tuple(replace(kind, lines=tuple(lines.get(kind.name, ()))) for kind in KINDS)
