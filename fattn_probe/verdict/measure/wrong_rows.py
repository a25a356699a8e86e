"""The wrong part of an output, in words."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from fattn_probe.base.figures import first_of

PLURAL = {"sequence": "sequences", "query": "queries", "head": "heads"}
LISTED = 6


def describe_rows(wrong: npt.NDArray[np.bool_]) -> str:
    """The number of wrong rows (n_seq, n_q, n_head) and their positions on each axis; fully wrong axes are omitted."""
    if wrong.all():
        if wrong.size == 1:
            return "the only row is wrong"
        return f"all {wrong.size} rows are wrong"
    found = [np.unique(indices) for indices in wrong.nonzero()]
    axes = [
        f"{name if indices.size == 1 else PLURAL[name]} {ranges(indices.tolist())} of {length}"
        for name, indices, length in zip(PLURAL, found, wrong.shape, strict=True)
        if indices.size != length
    ]
    places = f" ({'; '.join(axes)})" if axes else ""
    return f"wrong: {wrong.sum()} of {wrong.size} rows{places}"


def span(first: int, last: int) -> str:
    """Successive numbers, `3` or `0..3`."""
    return str(first) if first == last else f"{first}..{last}"


def runs(indices: Iterable[int]) -> list[list[int]]:
    """The first and the last of each run of successive numbers in a sorted list."""
    found: list[list[int]] = []
    for index in indices:
        if found and index == found[-1][1] + 1:
            found[-1][1] = index
        else:
            found.append([index, index])
    return found


def ranges(indices: Iterable[int]) -> str:
    """Sorted numbers as ranges, `0..3, 7`; a long list ends with `...`."""
    return first_of([span(first, last) for first, last in runs(indices)], LISTED, counted=False)
