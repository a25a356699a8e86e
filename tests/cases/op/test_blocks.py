"""Blocks that files share, equal ones once, and files with wrong fields: read as written, or refused with the key."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFValueType
from hypothesis import given
from hypothesis import strategies as st

from fattn_probe.base.errors import InputError
from fattn_probe.cases.op.case_file import BLOCK, FILE, QuantBlocks, case_fields, case_tensors, read_blocks, read_case
from fattn_probe.cases.op.gguf_file import Field, TensorData, array, f32, i32, string, u32, write_gguf
from fattn_probe.cases.scenario import expand, loads
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.machine.run.capture import Capture, read_capture, write_capture

GROWING = [np.arange(size, dtype=np.uint32).view(np.uint8) for size in (5000, 9000, 20000)]
"""A cache that grows: the start of each is the one before."""


def test_what_is_added_is_read(tmp_path):
    blocks = QuantBlocks(tmp_path)
    numbers = [blocks.add(data) for data in GROWING]
    for data, own in zip(GROWING, numbers, strict=True):
        assert np.array_equal(read_blocks(tmp_path / "op.gguf", own, data.size), data)


def test_equal_blocks_are_stored_once(tmp_path):
    blocks = QuantBlocks(tmp_path)
    for data in (*GROWING, *GROWING):
        blocks.add(data)
    whole = [data.size // BLOCK for data in GROWING]
    assert blocks.nbytes == (tmp_path / FILE).stat().st_size == (whole[-1] + len(GROWING)) * BLOCK


def test_a_file_of_an_earlier_run_is_replaced(tmp_path):
    (tmp_path / FILE).write_bytes(b"half of a block")
    data = GROWING[0]
    assert np.array_equal(read_blocks(tmp_path / "op.gguf", QuantBlocks(tmp_path).add(data), data.size), data)


@given(st.lists(st.tuples(st.integers(1, 3 * BLOCK), st.integers(0, 2)), min_size=1, max_size=5))
def test_any_sizes_and_contents(tmp_path_factory, parts):
    folder = Path(tmp_path_factory.mktemp("blocks"))
    blocks, written = QuantBlocks(folder), []
    for size, value in parts:
        data = np.full(size, value, np.uint8)
        written.append((blocks.add(data), data))
    for numbers, data in written:
        assert np.array_equal(read_blocks(folder / "op.gguf", numbers, data.size), data)


def test_blocks_that_are_not_there_are_named(tmp_path):
    numbers = QuantBlocks(tmp_path).add(GROWING[1])
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:-1])
    with pytest.raises(InputError, match=r"blocks: ends before a block of op.gguf"):
        read_blocks(tmp_path / "op.gguf", numbers, GROWING[1].size)
    (tmp_path / FILE).unlink()
    with pytest.raises(InputError, match=r"op.gguf: .* is in blocks, a file that all ops of its folder share"):
        read_blocks(tmp_path / "op.gguf", numbers, GROWING[1].size)


(CASE,) = expand(loads("version: 1\nabout: x\nhsk: 64\nn_head: 2\nn_q: 3\nn_kv: 64\nmask: {kind: causal}\n", "a.yaml"))
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


@pytest.mark.parametrize("key", [*case_fields("a", "d", CASE.op), *SHARED, "fattn.root.K.ne"])
def test_a_case_file_with_a_wrong_field(key, tmp_path):
    fields, tensors = case_fields(CASE.name, CASE.digest, CASE.op), case_tensors(CASE.op, make_inputs(CASE))
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
            read_case(path)
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
    fields = case_fields("a", CASE.digest, CASE.op) | {
        "fattn.run.backend": string("CPU"), "fattn.run.device": string("CPU"), "fattn.run.clock": string("wall"),
    }  # fmt: skip
    written = TensorData("f32", (64, 2, 3, 1), dst.reshape(-1).view(np.uint8))
    tensors = case_tensors(CASE.op, make_inputs(CASE)) | {"dst": written}
    write_gguf(path, fields | {name: i32(-1)}, tensors)
    with pytest.raises(InputError, match=rf"capture.gguf: {name} (has -1, expected text|is -1, expected an array)"):
        read_capture(path)
