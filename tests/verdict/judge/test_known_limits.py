"""Signs of known defects at their limits, and on ops that they do not fit."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fattn_probe.cases.op import Op, Params, Sizes
from fattn_probe.cases.op.values import view_values
from fattn_probe.llama.launch.kernel import columns_of_tile
from fattn_probe.verdict.judge.known import (
    CONDITIONS,
    Failure,
    Known,
    best,
    fewer_than_32_columns,
    is_large,
    is_view_of_converted_K,
    mask_ends_inside_tile,
    right_with_narrow_mask,
    right_with_V_in_K,
)
from tests.verdict.judge.test_known import OP, grouped, masked, padded, quantised, wide_mask


def test_a_known_defect_comes_before_a_doubt():
    doubt, certain = Known(doubt="maybe"), Known("id")
    assert best([doubt, certain]) is certain is best([certain, doubt])
    assert best([doubt]) is doubt and best([]) is None


@pytest.mark.parametrize(("columns", "few"), [((31, 1), True), ((8, 4), False), ((4, 4), True), ((16, 2), False)])
def test_32_columns_are_not_few(columns, few):
    kernel = f"flash_attn_ext_f16<128,128,{columns[0]},{columns[1]},false,false,false>"
    assert columns_of_tile(kernel) == columns
    assert fewer_than_32_columns(Failure(OP, "9.0", kernel)) == few
    assert not fewer_than_32_columns(Failure(OP, "9.0", "flash_attn_mask_to_KV_max<16>"))


def test_head_sizes_with_a_softcap_and_large_masks_are_counted_exactly():
    def holds(name, n_q=1, n_kv=256, hsk=64, softcap=30.0):
        op = masked(1, 4, 4, n_q, n_kv, hsk, hsk, softcap=softcap)
        return CONDITIONS[name](Failure(op, "9.0"))

    capped, large = "a softcap with a head size whose kernels have none", "a mask of more than 2^31 entries"
    assert [hsk for hsk in (64, 96, 128, 256, 512, 576) if holds(capped, hsk=hsk)] == [64, 96, 576]
    assert not holds(capped, softcap=0.0)
    assert [holds(large, n_q=1 << 15, n_kv=n_kv) for n_kv in (1 << 16, (1 << 16) + 32)] == [False, True]


def test_a_mask_ends_inside_a_tile_that_has_more_queries():
    scan = "flash_attn_mask_to_KV_max<16>"
    assert [mask_ends_inside_tile(Failure(padded(rows), "9.0", scan)) for rows in (9, 15, 16)] == [True, True, False]
    assert not mask_ends_inside_tile(Failure(padded(9), "9.0", "flash_attn_tile"))
    bare = Op.contiguous(Sizes(1, 8, 2, 9, 256, 128, 128), Params(1.0), ("f16", "f16"))
    assert not mask_ends_inside_tile(Failure(bare, "9.0", scan))


def right(op, column):
    asked = []

    def right_for(other, memory):
        asked.append(other)
        return True

    return right_with_V_in_K(Failure(op, "9.0", right_for=right_for), column), len(asked)


def test_v_may_be_a_part_of_a_row_of_k_that_is_longer():
    assert right(grouped(576, 4), 64) == right(grouped(576, 4), 0) == (True, 1)
    assert right(OP, 0) == right(grouped(512, 4), 0) == (False, 0)  # rows of one length
    wide = masked(1, 4, 1, 1, 256, 576, 512, type="q8_0")
    assert right(wide, 0) == (True, 1)
    assert right(wide, 64) == (False, 0)  # in the middle of blocks


@pytest.mark.parametrize(("type_", "offset", "is_one"), [("q8_0", 0, False), ("q8_0", 68, True), ("f32", 4, True)])
def test_a_view_of_a_converted_k_begins_later(type_, offset, is_one):
    op = masked(1, 4, 1, 1, 256, 576, 512, type=type_)
    K = op.tensors["K"]
    V = replace(K, name="V", ne=(512, *K.ne[1:]), offset=offset)
    assert is_view_of_converted_K(replace(op, tensors={**op.tensors, "V": V})) == is_one


def test_a_k_in_f16_is_not_converted():
    op = masked(1, 4, 1, 1, 256, 576, 512)
    assert not is_view_of_converted_K(replace(op, tensors={**op.tensors, "V": replace(op.tensors["K"], offset=2)}))
    assert not is_view_of_converted_K(quantised(64))


@pytest.mark.parametrize(("nbytes", "large"), [((1 << 31, 1), False), (((1 << 31) + 1, 1), True), ((1, 1 << 32), True)])
def test_two_gibibytes_are_not_more_than_two(nbytes, large):
    views = {name: SimpleNamespace(root=name) for name in "KV"}
    roots = {name: SimpleNamespace(nbytes=size) for name, size in zip("KV", nbytes, strict=True)}
    op: Any = SimpleNamespace(tensors=views, roots=roots)
    assert is_large(op, "KV") == large


def test_an_output_is_right_for_no_other_op_unless_it_was_held_against_it():
    assert not Failure(OP, "9.0").right_for(OP, {})


def test_the_scan_of_a_wider_mask_hides_what_the_wrong_rows_show():
    """The scan reads the rows where they are, in steps of 256 KV rows, both queries and each sequence alone."""
    mask = np.full((2, 1, 2, 640), -np.inf, np.float16)
    mask[0, 0, 1, 255] = mask[0, 0, 0, 513] = 1  # shown: one of the first 256 KV rows, and one that K does not have
    mask[1, 0, 0, :257] = mask[1, 0, 1, :] = 2  # shown in the second sequence: all
    masks = []

    def right_for(op, memory):
        masks.append(view_values(op.tensors["mask"], memory))
        return True

    for scanned in (False, True):
        inputs = {"mask": mask.view(np.uint8).ravel()}
        failure = Failure(wide_mask(2, 2), "gfx906", inputs=inputs, scanned=scanned, right_for=right_for)
        assert right_with_narrow_mask(failure)
    rows, ended = masks
    assert np.isfinite(rows[0, 0]).sum(axis=-1).tolist() == [0, 2] and (rows[0, 0, 1, [1, 128 + 255]] == 1).all()
    assert np.isfinite(ended[0, 0]).sum(axis=-1).tolist() == [0, 1] and ended[0, 0, 1, 1] == 1
    assert (ended[1] == rows[1]).all() and np.isfinite(rows[1, 0]).sum(axis=-1).tolist() == [257, 384]
