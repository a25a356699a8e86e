"""An op: values derived from its tensors, its JSON round trip, and memory that repeats."""

import gc
import json
import resource
import struct
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from fattn_probe.cases.op import Op, Params, Root, Sizes, TensorView
from fattn_probe.cases.op.case_file import repeated, whole
from fattn_probe.cases.op.op import BLOCKS, TYPE_NAMES, default_scale, float32
from fattn_probe.cases.scenario import expand, loads

SIZES = Sizes(n_seq=3, n_head=8, n_head_kv=2, n_q=7, n_kv=512, hsk=64, hsv=32)
MLA = """
version: 1
about: V is a part of K
hsk: 96
hsv: 64
n_head: 4
n_head_kv: 1
n_q: 2
n_kv: 32
type_K: q8_0
sinks: true
mask: {kind: causal}
layout: {V: {kind: view_of_K, offset: OFFSET}, Q: {kind: view, permute: [0, 2, 1, 3]}}
"""


def mla(offset=0):
    return expand(loads(MLA.replace("OFFSET", str(offset))))[0].op


def test_sizes_and_types_come_from_the_tensors():
    op = Op.contiguous(SIZES, Params(0.125), ("q8_0", "f16"), mask=True)
    assert (op.sizes, op.type_K, op.type_V, op.has_mask, op.has_sinks) == (SIZES, "q8_0", "f16", True, False)
    assert (SIZES.group, SIZES.dst, SIZES.flop) == (4, (3, 7, 8, 32), 2 * 3 * 8 * 7 * 512 * 96)


def test_a_scenario_gives_the_same_sizes_whatever_its_layout():
    assert asdict(mla().sizes) == {
        "n_seq": 1, "n_head": 4, "n_head_kv": 1, "n_q": 2, "n_kv": 32, "hsk": 96, "hsv": 64}  # fmt: skip


@pytest.mark.parametrize(("offset", "view"), [(0, True), (32, False)])
def test_V_is_a_view_of_K_where_it_begins_with_it(offset, view):
    assert mla(offset).V_is_K_view is view


def test_json_gives_the_op_back():
    for op in (mla(32), Op.contiguous(SIZES, Params(0.1, 8.0, 5.0, 0, 3), ("bf16", "q4_0"), sinks=True)):
        assert Op.from_json(json.loads(json.dumps(op.to_json()))) == op


def test_stored_parameters_are_float32():
    stored = Params(0.1, logit_softcap=0.3, n_kv_max=7).stored
    assert stored.scale == 0.10000000149011612
    assert (stored.logit_softcap, stored.prec, stored.n_kv_max) == (0.30000001192092896, 10, 7)


def test_a_view_ends_where_its_last_row_does():
    assert Root("K", "q8_0", (64, 5, 2, 1)).nbytes == 5 * 2 * 68
    assert TensorView("K", "q8_0", "K", (64, 3, 2, 1), (34, 68, 340, 680), 68).end == 68 + 340 + 2 * 68 + 68


@pytest.mark.parametrize("name", TYPE_NAMES)
def test_block_sizes_are_those_of_gguf(name):
    assert BLOCKS[name] == GGML_QUANT_SIZES[GGMLQuantizationType[name.upper()]]


@given(st.floats(allow_nan=False))
def test_float32_rounds_as_numpy(value):
    with np.errstate(over="ignore"):
        expected = float(np.float32(value))
    assert struct.pack("d", float32(value)) == struct.pack("d", expected)


@given(st.integers(1, 2**31 - 1))
def test_the_default_scale_is_ggmls(hsk):
    assert default_scale(hsk) == float(np.float32(1) / np.sqrt(np.float32(hsk)))


PAGE = 4096


@pytest.mark.parametrize("size", [1, PAGE - 1, 3 * PAGE, 3 * PAGE + 5, 7 * PAGE])
def test_the_part_comes_again_and_again(size):
    part = np.random.default_rng(1).integers(0, 256, 3 * PAGE).astype(np.uint8)
    found = repeated(part, size)
    assert found.shape == (size,)
    np.testing.assert_array_equal(found, np.resize(part, size))


def test_it_is_read_only():
    with pytest.raises(ValueError, match="read-only"):
        repeated(np.zeros(PAGE, np.uint8), PAGE)[0] = 1


def test_a_hundred_gigabytes_cost_one_part():
    part = np.arange(16 << 20, dtype=np.uint32).view(np.uint8)[: 16 << 20]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = repeated(part, 100 << 30)
    assert found[99 << 30 : (99 << 30) + 8].tolist() == part[:8].tolist()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 << 10  # KiB


def test_views_keep_the_memory_and_the_last_one_returns_it():
    found = repeated(np.full(PAGE, 7, np.uint8), 100 * PAGE)[5 * PAGE :].view(np.float16)
    gc.collect()
    assert found[0].view(np.uint16) == 0x0707
    mappings = len(Path("/proc/self/maps").read_text().splitlines())
    del found
    assert len(Path("/proc/self/maps").read_text().splitlines()) < mappings


def test_a_root_without_a_period_is_what_is_stored():
    stored = np.arange(64, dtype=np.uint8)
    assert whole(Root("K", "f32", (16, 1, 1, 1)), stored) is stored
