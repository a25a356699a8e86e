"""Faults planted into an output: each fault's change of the exact answer is added to a correct kernel's output."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fattn_probe.llama.launch.geometry import Geometry
from fattn_probe.verdict.diagnose.row import Around, AttentionRow
from tests import made
from tests.made import CAUSAL, shape


def case_of(n_kv):
    """A batch whose faults are planted."""
    return made.case_of(shape(128, 4, 2, 16, n_kv, CAUSAL, "seed: 3"))


def last_key_dropped(row, geometry, place):
    logits = row.logits
    logits[np.flatnonzero(np.isfinite(logits))[-1]] = -np.inf
    return row.output(logits)


def output_scaled(row, geometry, place):
    return 1.01 * row.output(row.logits)


def scale_off(row, geometry, place):
    return row.output(1.02 * row.raw + row.mask)


def rows_swapped(row, geometry, place):
    V = row.V.copy()
    V[[37, 411]] = V[[411, 37]]
    return replace(row, V=V).output(row.logits)


def share_rescaled(row, geometry, place):
    """The first block's part of a shared tile is rescaled; in an undivided tile, the first half."""
    part, *_ = geometry.parts_of(geometry.tile_of(*place)).values()
    stop = part.kb0_stop if part.kb0_stop < geometry.grid.iter_k else geometry.grid.iter_k // 2
    logits = row.logits
    logits[: stop * geometry.rows] += np.log(0.95)
    return row.output(logits)


def step_left_out(row, geometry, place):
    logits = row.logits
    logits[2 * geometry.rows : 3 * geometry.rows] = -np.inf
    return row.output(logits)


def mask_one_late(row, geometry, place):
    """Each query sees one KV row more than it should; the last has none left to see."""
    mask = row.mask.copy()
    mask[np.flatnonzero(np.isneginf(mask))[:1]] = 0.0
    return row.output(row.raw + mask)


def first_key_twice(row, geometry, place):
    logits = row.logits
    logits[0] += np.log(2)
    return row.output(logits)


Fault = Callable[[AttentionRow, Geometry, tuple[int, int, int]], np.ndarray]
FAULTS: dict[Fault, str] = {
    last_key_dropped: "the last visible KV row is left out",
    output_scaled: "the output is scaled",
    scale_off: "the logits are scaled",
    rows_swapped: "two rows of V are swapped",
    share_rescaled: "one KV tile has the wrong weight",
    step_left_out: "one KV tile is left out",
    mask_one_late: "the KV row after the last visible one is seen",
    first_key_twice: "one KV row is counted twice",
}


def planted(fault, case, inputs, dst, geometry, *, where=None):
    """An output with a fault in all rows, or in those of `where` (n_seq, n_q, n_head)."""
    wrong = dst.astype(np.float64)
    heads: dict = {}
    for place in np.ndindex(dst.shape[:3]):
        if where is None or where[place]:
            around = Around(case, inputs, *place)
            at = around.sequence, around.kv_head
            heads[at] = heads.get(at) or around.kv
            row = AttentionRow.of(around, heads[at])
            wrong[place] += fault(row, geometry, place) - row.output(row.logits)
    return wrong.astype(np.float32)
