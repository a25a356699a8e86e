"""An op (derived values, its JSON, memory that repeats), and files: as written, or refused with the wrong key."""

import gc
import json
import resource
import struct
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from hypothesis import given
from hypothesis import strategies as st

from fattn_probe.base.errors import InputError
from fattn_probe.cases.op import Op, Params, Root, Sizes, TensorView, case_file
from fattn_probe.cases.op.gguf_file import Field, TensorData, array, f32, i32, string, u32, write_gguf
from fattn_probe.cases.op.op import BLOCKS, TYPE_NAMES, default_scale, float32
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.machine.run.capture import Capture, read_capture, write_capture
from tests.made import CAUSAL, case_of, shape

SIZES = Sizes(n_seq=3, n_head=8, n_head_kv=2, n_q=7, n_kv=512, hsk=64, hsv=32)


def mla(offset=0):
    """V is a part of K."""
    layout = f"layout: {{V: {{kind: view_of_K, offset: {offset}}}, Q: {{kind: view, permute: [0, 2, 1, 3]}}}}"
    return case_of(shape(96, 4, 1, 2, 32, "hsv: 64", "type_K: q8_0", "sinks: true", CAUSAL, layout)).op


def test_sizes_and_types_come_from_the_tensors_whatever_the_layout():
    op = Op.contiguous(SIZES, Params(0.125), ("q8_0", "f16"), mask=True)
    assert (op.sizes, op.type_K, op.type_V, op.has_mask, op.has_sinks) == (SIZES, "q8_0", "f16", True, False)
    assert (SIZES.group, SIZES.dst, SIZES.flop) == (4, (3, 7, 8, 32), 2 * 3 * 8 * 7 * 512 * 96)
    assert asdict(mla().sizes) == {
        "n_seq": 1, "n_head": 4, "n_head_kv": 1, "n_q": 2, "n_kv": 32, "hsk": 96, "hsv": 64}  # fmt: skip


@pytest.mark.parametrize(("offset", "view"), [(0, True), (32, False)])
def test_V_is_a_view_of_K_where_it_begins_with_it(offset, view):
    assert mla(offset).V_is_K_view is view


def test_json_gives_the_op_back_and_stored_parameters_are_float32():
    for op in (mla(32), Op.contiguous(SIZES, Params(0.1, 8.0, 5.0, 0, 3), ("bf16", "q4_0"), sinks=True)):
        assert Op.from_json(json.loads(json.dumps(op.to_json()))) == op
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
    found = case_file.repeated(part, size)
    assert found.shape == (size,)
    np.testing.assert_array_equal(found, np.resize(part, size))


def test_memory_is_read_only_and_without_a_period_what_is_stored():
    with pytest.raises(ValueError, match="read-only"):
        case_file.repeated(np.zeros(PAGE, np.uint8), PAGE)[0] = 1
    stored = np.arange(64, dtype=np.uint8)
    assert case_file.whole(Root("K", "f32", (16, 1, 1, 1)), stored) is stored


def test_a_hundred_gigabytes_cost_one_part():
    part = np.arange(16 << 20, dtype=np.uint32).view(np.uint8)[: 16 << 20]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert case_file.repeated(part, 100 << 30)[99 << 30 : (99 << 30) + 8].tolist() == part[:8].tolist()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 << 10  # KiB


def test_views_keep_the_memory_and_the_last_one_returns_it():
    found = case_file.repeated(np.full(PAGE, 7, np.uint8), 100 * PAGE)[5 * PAGE :].view(np.float16)
    gc.collect()
    assert found[0].view(np.uint16) == 0x0707
    mappings = len(Path("/proc/self/maps").read_text().splitlines())
    del found
    assert len(Path("/proc/self/maps").read_text().splitlines()) < mappings


GROWING = [np.arange(size, dtype=np.uint32).view(np.uint8) for size in (5000, 9000, 20000)]
"""A cache that grows: the start of each is the one before."""


def test_what_is_added_is_read_and_equal_blocks_are_stored_once(tmp_path):
    blocks = case_file.QuantBlocks(tmp_path)
    numbers = [blocks.add(data) for data in GROWING]
    for data, own in zip(GROWING, numbers, strict=True):
        assert np.array_equal(case_file.read_blocks(tmp_path / "op.gguf", own, data.size), data)
    for data in (*GROWING, *GROWING):
        blocks.add(data)
    whole = [data.size // case_file.BLOCK for data in GROWING]
    assert blocks.nbytes == (tmp_path / case_file.FILE).stat().st_size == (whole[-1] + len(GROWING)) * case_file.BLOCK


def test_a_file_of_an_earlier_run_is_replaced(tmp_path):
    (tmp_path / case_file.FILE).write_bytes(b"half of a block")
    data = GROWING[0]
    assert np.array_equal(
        case_file.read_blocks(tmp_path / "op.gguf", case_file.QuantBlocks(tmp_path).add(data), data.size), data
    )


@given(st.lists(st.tuples(st.integers(1, 3 * case_file.BLOCK), st.integers(0, 2)), min_size=1, max_size=5))
def test_any_sizes_and_contents(tmp_path_factory, parts):
    folder = Path(tmp_path_factory.mktemp("blocks"))
    blocks, written = case_file.QuantBlocks(folder), []
    for size, value in parts:
        data = np.full(size, value, np.uint8)
        written.append((blocks.add(data), data))
    for numbers, data in written:
        assert np.array_equal(case_file.read_blocks(folder / "op.gguf", numbers, data.size), data)


def test_blocks_that_are_not_there_are_named(tmp_path):
    numbers = case_file.QuantBlocks(tmp_path).add(GROWING[1])
    (tmp_path / case_file.FILE).write_bytes((tmp_path / case_file.FILE).read_bytes()[:-1])
    with pytest.raises(InputError, match=r"blocks: the file ends before a block that op.gguf needs"):
        case_file.read_blocks(tmp_path / "op.gguf", numbers, GROWING[1].size)
    (tmp_path / case_file.FILE).unlink()
    with pytest.raises(InputError, match=r"op.gguf: .* is in blocks, which all ops in its folder share"):
        case_file.read_blocks(tmp_path / "op.gguf", numbers, GROWING[1].size)


CASE = case_of("version: 1\nabout: x\nhsk: 64\nn_head: 2\nn_q: 3\nn_kv: 64\nmask: {kind: causal}\n")
INT = GGUFValueType.INT64
SHARED = {
    "fattn.shared.K.type": string("f16"),
    "fattn.shared.K.ne": array(INT, (64, 64, 2, 1)),
    "fattn.shared.K.blocks": array(GGUFValueType.UINT32, [0]),
}
WRONG = [
    None, string(""), string("x"), string("Q"), i32(-1), u32(0), f32(float("nan")), f32(float("inf")),
    Field(INT, 2**62), Field(GGUFValueType.BOOL, True), array(INT, [0]), array(INT, [-1] * 4), array(INT, [2**40] * 4),
    array(INT, [1] * 5), array(GGUFValueType.UINT64, [0] * 4), array(GGUFValueType.STRING, ["a"] * 4),
    array(GGUFValueType.FLOAT32, [1.5, 2.0, 3.0, float("nan")]),
]  # fmt: skip


@pytest.mark.parametrize("key", [*case_file.case_fields("a", "d", CASE.op), *SHARED, "fattn.root.K.ne"])
def test_a_case_file_with_a_wrong_field(key, tmp_path):
    fields, tensors = (
        case_file.case_fields(CASE.name, CASE.digest, CASE.op),
        case_file.case_tensors(CASE.op, make_inputs(CASE)),
    )
    if key in SHARED:
        fields |= SHARED
        del tensors["K"]
        (tmp_path / "blocks").write_bytes(bytes(1 << 16))
    refused = 0
    for number, wrong in enumerate(WRONG):
        path = tmp_path / f"{number}.gguf"
        others = {name: field for name, field in fields.items() if name != key}
        write_gguf(path, others if wrong is None else others | {key: wrong}, tensors)
        try:
            case_file.read_case(path)
        except InputError as error:
            assert str(number) in str(error) or "op" in str(error), error
            refused += 1
    assert refused >= 9


@pytest.mark.parametrize("key", ["backend", "device", "clock", "seconds", "launches"])
def test_a_capture_with_a_wrong_field(key, tmp_path):
    path = tmp_path / "capture.gguf"
    dst = np.zeros((1, 3, 2, 64), np.float32)
    capture = Capture("a", CASE.digest, CASE.op, make_inputs(CASE), dst, (), "wall", (0.1,), "CPU", "CPU", {})
    write_capture(capture, path)
    name = "fattn.launches" if key == "launches" else f"fattn.run.{key}"
    fields = case_file.case_fields("a", CASE.digest, CASE.op) | {
        "fattn.run.backend": string("CPU"), "fattn.run.device": string("CPU"), "fattn.run.clock": string("wall"),
    }  # fmt: skip
    written = TensorData("f32", (64, 2, 3, 1), dst.reshape(-1).view(np.uint8))
    tensors = case_file.case_tensors(CASE.op, make_inputs(CASE)) | {"dst": written}
    write_gguf(path, fields | {name: i32(-1)}, tensors)
    with pytest.raises(InputError, match=rf"capture.gguf: {name} (has -1, expected text|is -1, expected an array)"):
        read_capture(path)
