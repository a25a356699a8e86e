"""What the simulator counts, beside what Nsight Compute 2025.3 counted on an H100."""

import json
from pathlib import Path

import pytest

from tests.as_user import fattn_probe

pytestmark = pytest.mark.build
TRANSPOSE = Path(__file__).parents[1] / "program/programs/transpose.cu"
ROWS, COLUMNS = 173, 300
# Of ncu: tensor and ldmatrix instructions, shared wavefronts, bank conflicts, global load sectors. Then by how much the
# wavefronts may differ (docs/profile.md says why), and the conflicts that follow from the addresses.
MEASURED = {
    "gqa": ((2048, 1152, 7866, 0, 7520), 0.07, 0),
    "mla": ((17408, 13312, 105012, 1864, 100512), 0.02, 544),
    "decode": ((None, 0, 262958, 29377, 2211840), 0.065, 24576),
}


def profiled(*words):
    return json.loads(fattn_probe("profile", *words, "--json").stdout)["profiles"]


@pytest.mark.parametrize(("name", "row"), MEASURED.items())
def test_an_h200_meets_what_an_h100_counted(name, row):
    (tensor, ldmatrix, wavefronts, conflicts, sectors), allowed, by_addresses = row
    (profile,) = profiled(name, "--on", "sim:h200")
    launch = profile["launches"][0]
    counts = launch["counts"]
    assert counts["ldmatrix"] == ldmatrix
    assert tensor is None or counts["tensor"] == tensor
    assert counts["load_sectors"] == pytest.approx(sectors, rel=0.005)
    assert counts["pipe_wavefronts"] == pytest.approx(wavefronts, rel=allowed)
    assert counts["conflicts"] == by_addresses <= conflicts
    assert launch["occupancy"]["blocks"] == launch["max_blocks_per_sm"]


def test_each_tensor_of_an_op_has_its_bytes():
    (profile,) = profiled("gqa", "--on", "sim:h200")
    read = {one["tensor"]: one["read"] for one in profile["launches"][0]["traffic"]}
    assert read["K"] == read["V"] == 4 * 64 * 64 * 2 * 2  # four blocks a K/V head, each with its own 64 rows
    assert {one["tensor"]: one["read"] for one in profile["formula"]}["K"] == read["K"]
    assert profile["flops"] == 2 * 14 * 7 * 256 * 128


def test_a_transpose_has_conflicts_until_its_tile_is_padded():
    (profile,) = profiled(TRANSPOSE, "--on", "sim:h200")
    naive, shared, padded = profile["launches"]
    assert naive["counts"]["conflicts"] == 0 == padded["counts"]["conflicts"]
    columns = [min(32, COLUMNS - first) for first in range(0, COLUMNS, 32)]
    rows = [min(32, ROWS - first) for first in range(0, ROWS, 32)]
    assert shared["counts"]["load_wavefronts"] == sum(row * column for row in rows for column in columns)
    assert shared["counts"]["conflicts"] == shared["counts"]["load_wavefronts"] - shared["counts"]["shared_loads"]
    assert padded["counts"]["load_wavefronts"] == padded["counts"]["shared_loads"]
    assert naive["sectors_of_a_store"] > 6 * padded["sectors_of_a_store"]
