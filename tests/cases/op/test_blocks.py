"""Blocks that files share: what is read is what was written, and equal blocks are stored once."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fattn_probe.base.errors import InputError
from fattn_probe.cases.op.case_file import BLOCK, FILE, QuantBlocks, read_blocks

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
