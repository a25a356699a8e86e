"""A fault planted into a file of llama.cpp's, as a patch."""

from pathlib import Path

ROPE = ("ggml/src/ggml-cuda/rope.cu", "sin_theta = sinf(", "sin_theta = -sinf(")
SET_ROWS = ("ggml/src/ggml-cuda/set-rows.cu", "dst_row = *(src1", "dst_row = 1 + *(src1")
"""Faults of several tests, which share their builds."""


def fault_in(tree, folder: Path, path: str, old: str, new: str) -> Path:
    """A patch that replaces a text by another in each line of a file that has it."""
    lines = (tree.root / path).read_text().splitlines()
    hunks = [
        f"@@ -{number},1 +{number},1 @@\n-{line}\n+{line.replace(old, new)}\n"
        for number, line in enumerate(lines, 1)
        if old in line
    ]
    assert hunks
    patch = folder / "fault.patch"
    patch.write_text("".join([f"--- a/{path}\n+++ b/{path}\n", *hunks]))
    return patch
