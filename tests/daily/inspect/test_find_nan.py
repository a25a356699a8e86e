from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fattn_probe.daily.inspect.facts import Choice, Facts
from fattn_probe.daily.inspect.trace.checks import TracedOperands
from fattn_probe.daily.inspect.trace.find_nan import NaNSearch, in_dst, in_inputs, in_stages
from fattn_probe.daily.inspect.trace.stages import Stage
from fattn_probe.llama.launch.tiles import BlockWork, TileWork
from tests.daily.inspect.traced import CASE, INPUTS, SCENARIO, WIDE, Warp, fragments_of, small_case

TEMPLATE = {"DKQ": 64, "DV": 64, "ncols1": 8, "ncols2": 2}
SOURCE = {
    "fattn-mma-f16.cuh": "a\n                            dstk_val.x /= KQ_rowsum_j;\n",
    "fattn-common.cuh": "a\nb\n    *dst = dst_val / rowsum;\n",
}


def blocks_of(*kb0):
    """The tile of queries 0 to 7 of K/V head 1, cut into pieces, each a block's second tile."""
    other = TileWork(0, 0, 0, 1, 3, 5)
    pieces = [TileWork(0, 1, 0, 0, start, stop) for start, stop in pairwise(kb0)]
    return tuple(BlockWork(at, (at, 0, 0), None, None, (other, piece)) for at, piece in enumerate(pieces))


class Followed:
    """The blocks of an op, traced in NumPy; `asked` lists the traced warps."""

    def __init__(self, case=CASE, inputs=INPUTS, blocks=None, fault=None):
        self.case, self.inputs, self.blocks, self.fault = case, inputs, blocks or blocks_of(0, 5), fault
        self.asked = []

    def read(self, block, warp, tiles):
        self.asked.append((block.block, warp, tiles))
        fragments = fragments_of(WIDE, 8, 2, warp)
        with np.errstate(all="ignore"):
            document = Warp(self.case, self.inputs, fragments, block.tiles[tiles - 1], fault=self.fault).document()
        return document | {"readings": [reading | {"tile": tiles - 1} for reading in document["readings"]]}

    def hunt(self, dst, tmp_path):
        for name, text in SOURCE.items():
            (tmp_path / name).write_text(text)
        choice = Choice("mma_f16", "flash_attn_ext_f16<64,64,8,2>", TEMPLATE, {})
        facts = Facts({}, choice=choice, launch={"block_dim": [32, 4, 1]}, blocks=self.blocks)
        operands = TracedOperands.of(self.case, self.inputs)
        last = in_dst(dst)
        return last and NaNSearch(operands, facts, self.read, tmp_path).origin(last)


def dst_of(case=CASE, bad=()):
    dst = np.zeros((1, case.op.sizes.n_q, case.op.sizes.n_head, case.op.sizes.hsv), np.float32)
    for place in bad:
        dst[place] = np.nan
    return dst


def test_inputs_are_checked_first_and_a_mask_may_hold_minus_infinity():
    assert in_inputs(CASE, INPUTS) is None
    spoilt = {**INPUTS, "V": INPUTS["V"].copy()}
    # V is f16, ne = {64, 300, 2}: element 3 of row 7 of head 1
    spoilt["V"].view(np.float16).reshape(2, 300, 64)[1, 7, 3] = np.inf
    found = in_inputs(CASE, spoilt)
    assert (found.tensor, found.value, found.at) == ("V", np.inf, {"i0": 3, "i1": 7, "i2": 1, "i3": 0})
    assert "V[3, 7, 1, 0] of the inputs is inf" in found.words
    spoilt = {**INPUTS, "mask": INPUTS["mask"].copy()}
    spoilt["mask"].view(np.float16)[5] = np.nan
    assert in_inputs(CASE, INPUTS) is None
    assert in_inputs(CASE, spoilt).at["i0"] == 5


def test_nothing_is_traced_if_all_values_are_finite(tmp_path):
    followed = Followed()
    assert followed.hunt(dst_of(), tmp_path) is None
    assert not followed.asked


@pytest.mark.parametrize(
    ("name", "kb0", "tensor", "at"),
    [
        ("KQ", 1, "KQ", {"query": 2, "head": 3, "KV row": 64 + 9}),
        ("P", 3, "P", {"query": 2, "head": 3, "KV row": 3 * 64 + 9}),
        ("VKQ", 2, "VKQ", {"query": 2, "head": 3, "d": 9}),
        ("VKQ", 4, "VKQ", {"query": 2, "head": 3, "d": 9}),
    ],
)
def test_the_first_register_that_is_not_finite(tmp_path, name, kb0, tensor, at):
    def fault(of, step, values):
        if (of, step) == (name, kb0):
            values[5, 9] = np.nan
        return values

    # warp 0 of the 4 that share the 16 columns has KV rows 0 to 15 of each 64
    found = Followed(fault=fault).hunt(dst_of(bad=[(0, 2, 3, 1)]), tmp_path)
    assert (found.tensor, found.kb0, found.block) == (tensor, kb0, 0)
    assert found.at == {"sequence": 0} | at
    assert found.thread[1] == 0
    assert np.isnan(found.value)


def test_all_warps_that_share_the_column_and_all_pieces_are_followed(tmp_path):
    followed = Followed(blocks=blocks_of(0, 2, 5))
    found = followed.hunt(dst_of(bad=[(0, 2, 3, 1)]), tmp_path)
    assert followed.asked == [(block, warp, 2) for block in (0, 1) for warp in range(4)]
    # two blocks share the tile: the fixup kernel divides
    assert (found.tensor, found.place) == ("dst", "fattn-common.cuh:3")


def test_a_row_that_sees_nothing_is_divided_by_zero(tmp_path):
    text = SCENARIO.replace(
        "{kind: causal}", "{kind: sum, of: [{kind: causal}, {kind: masked_rows, every: 3, first: 1}]}"
    )
    case, inputs = small_case(text)
    followed = Followed(case, inputs)
    found = followed.hunt(dst_of(case, bad=[(0, 1, 2, slice(None))]), tmp_path)
    assert (found.tensor, found.place, found.block) == ("dst", "fattn-mma-f16.cuh:2", 0)
    assert "mask is -inf everywhere" in found.words


@pytest.mark.parametrize(
    ("data", "tensor", "why"),
    [
        ("V: {kind: uniform, scale: 1, mean: 60000}", "VKQ", "the accumulator is f16"),
        ("Q: {kind: uniform, scale: 1, mean: 70000}", "KQ", "more than f16 holds"),
    ],
)
def test_values_beyond_f16_are_reported(tmp_path, data, tensor, why):
    case, inputs = small_case(SCENARIO + f"data: {{{data}}}\n")
    found = Followed(case, inputs).hunt(dst_of(case, bad=[(0, 2, 3, 1)]), tmp_path)
    assert found.tensor == tensor
    assert why in found.words


def test_the_stages_of_a_warp_are_searched_in_order_for_its_row():
    """[column][lane][number]: column 1 has query 2, whose masked logit is not reported."""
    labels = {"query": np.array([1, 2])[:, None, None], "head": np.array([3, 3])[:, None, None]}
    labels |= {"lane": np.arange(4)[None, :, None]}
    values = np.zeros((2, 4, 1), np.float32)
    logits, weights, sums = values.copy(), values.copy(), values.copy()
    logits[:, 1], weights[0], sums[1, 2] = -np.inf, np.nan, np.inf
    pairs = (("KQ", logits), ("P", weights), ("KQ_sum", sums))
    stages = [Stage("kb0 4", name, found, values, np.zeros(1), labels, "here:1", kb0=4) for name, found in pairs]
    found = in_stages(stages, (0, 2, 3), 5, 1)
    assert (found.tensor, found.value, found.block, found.thread, found.kb0) == ("KQ_sum", np.inf, 5, (2, 1), 4)
    assert found.words == "KQ_sum of sequence 0, query 2, head 3 is inf, kb0 4: block 5, warp 1, lane 2, seen at here:1"
    assert in_stages(stages[:2], (0, 2, 3), 5, 1) is None
    assert in_stages(stages, (0, 1, 3), 5, 1).tensor == "P"


def test_a_kernel_that_ended_early_leaves_its_readings(tmp_path):
    class Ended(Followed):
        def read(self, block, warp, tiles):
            return {"readings": [], "stopped": ["signal", "SIGSEGV", "f"]}

    assert Ended().hunt(dst_of(bad=[(0, 2, 3, 1)]), tmp_path).tensor == "dst"


def test_columns_that_do_not_exist_are_not_judged(tmp_path):
    def fault(of, step, values):
        if of == "KQ":
            values[11, :] = np.nan
        return values

    blocks = tuple(replace(block, tiles=(*block.tiles[:1], replace(block.tiles[1], jt=1))) for block in blocks_of(0, 5))
    found = Followed(blocks=blocks, fault=fault).hunt(dst_of(bad=[(0, 9, 3, 1)]), tmp_path)
    assert found.tensor == "dst"
