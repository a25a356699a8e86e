"""Huge and long cases by the command line: correct kernels pass, and the planted 32-bit offsets are found."""

import pytest

from tests.cli.test_cli import answer
from tests.made import SCENARIOS

HUGE = SCENARIOS / "huge"
PARTS = {"rows", "of", "blocks", "of_blocks", "complete"}

pytestmark = [pytest.mark.build, pytest.mark.network, pytest.mark.night]


def rows_of(scenario, *words, on="sim:h200", code=0):
    return answer("compare", str(scenario), "--on", on, "--no-maps", *words, code=code)["rows"]


def test_a_stride_of_the_mask_in_32_bits_is_found():
    """llama.cpp#24945."""
    (row,) = rows_of(HUGE / "mask-sequences.yaml", "--patch", "fault-mask-scan", code=5)
    assert row["finding"]["kind"] == "out-of-bounds"
    assert row["finding"]["kernel"].startswith("flash_attn_mask_to_KV_max")
    assert "of mask (allocation 0), which has 17179869184 bytes" in row["finding"]["message"]


@pytest.mark.parametrize(
    ("name", "patch", "what"),
    [
        ("kv-offsets", "fault-kv-offset", "of K (allocation"),  # llama.cpp#14840
        ("mask-rows", "fault-mask-offset", "of mask (allocation"),  # llama.cpp#23610
    ],
)
def test_offsets_in_32_bits_are_found(name, patch, what):
    for row in rows_of(HUGE / f"{name}.yaml", "--patch", patch, code=5):
        assert row["status"] == "fail"
        assert row["finding"]["kind"] == "out-of-bounds"
        assert what in row["finding"]["message"]


@pytest.mark.parametrize("name", ["dst", "kv-offsets", "mask-rows", "mask-sequences"])
def test_correct_kernels_pass(name):
    rows = rows_of(HUGE / f"{name}.yaml")
    assert {row["status"] for row in rows} == {"pass"}
    assert all(set(row["sampled"]) == PARTS and row["sampled"]["rows"] >= 20 for row in rows)
    assert all(row["sampled"]["blocks"] < row["sampled"]["of_blocks"] for row in rows)


def test_the_correct_tile_kernel_passes():
    (row,) = rows_of(HUGE / "tile.yaml")
    assert row["status"] == "pass"


def test_a_long_case_is_judged_by_some_blocks_in_every_bit():
    (row,) = rows_of(HUGE.parent / "examples/long-cache.yaml", on="sim:rtx4090")
    assert row["status"] == "pass"
    assert row["design"]["equal_bits"] == 1.0
    assert (row["sampled"]["of"], row["sampled"]["of_blocks"]) == (16384, 256)
    assert row["sampled"]["blocks"] < 128
