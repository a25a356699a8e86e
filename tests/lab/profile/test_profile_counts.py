"""What the simulator counts, beside what Nsight Compute 2025.3 counted on an H100."""

import json
from pathlib import Path

import pytest

from tests.as_user import completed

pytestmark = pytest.mark.build
TRANSPOSE = Path(__file__).parents[1] / "program/programs/transpose.cu"
TILED = "fattn_probe/lab/kernels/cuda/naive_and_tiled.cu"
ROWS, COLUMNS = 173, 300
H100 = json.loads((Path(__file__).parent / "h100.json").read_text())
"""ncu's counts of each launch of the shipped scenarios (2026-11-23, llama.cpp b11549, nvcc 13.0)."""
ATTENTION = "flash_attn_ext_f16"
SPARSE = "flash_attn_mask_to_sparse_indices"
# A lane's n-th store from one place joins the n-th stores of the other lanes, though they belong to other turns.
STORE_SECTORS = {SPARSE: 0.08}
BEYOND = {("streamk-fractional", ATTENTION): {"copies": -4104}}
"""What the simulator counts beyond the H100, by case and kernel (docs/guide/profile.md)."""
SHIPPED = {path.stem for path in (Path(__file__).parents[3] / "scenarios").glob("*.yaml")}
QUICK = {"gqa", "decode"}


def scenario_of(case):
    """The shipped scenario with the longest name that the case's name begins with; ValueError if there is none."""
    return max((name for name in SHIPPED if case == name or case.startswith(f"{name}-")), key=len)


SCENARIOS = [
    pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow, pytest.mark.night])
    for name in sorted({scenario_of(case) for case in H100 if not case.endswith(".cu")})
]


def profiled(*words):
    return json.loads(completed("profile", "--json", *words).stdout)["profiles"]  # `words` may end with a program's own


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_h200_counts_what_an_h100_counted(name):
    for case in profiled(name, "--on", "sim:h200"):
        for launch, measured in zip(case["launches"], H100[case["name"]], strict=True):
            assert (launch["kernel"], launch["grid"]) == (measured["kernel"], measured["grid"])
            assert_meets(launch["counts"], measured["counts"], (case["name"], launch["kernel"]))
            assert launch["occupancy"]["blocks"] == launch["max_blocks_per_sm"]


def assert_meets(counts, measured, key):
    """Of tile and vec kernels ncu counts half-precision arithmetic as tensor instructions."""
    counts = {name: count - BEYOND.get(key, {}).get(name, 0) for name, count in counts.items()}
    equal = ("tensor", "ldmatrix", "copies") if key[1] == ATTENTION else ("ldmatrix",)
    near = {"load_sectors": 0.01, "load_requests": 0.25, "wavefronts": 0.02, "conflicts": 0.05}
    near["store_sectors"] = STORE_SECTORS.get(key[1], 0.01)
    assert {name: counts[name] for name in equal if name in measured} == {
        name: measured[name] for name in equal if name in measured
    }
    for name, relative in near.items():
        if name in measured:
            assert counts[name] == pytest.approx(measured[name], rel=relative, abs=4), (name, key)


@pytest.mark.slow
@pytest.mark.night
def test_the_tiled_kernel_has_the_wavefronts_of_an_h100():
    """nvcc unrolls its loops and joins their loads."""
    (profile,) = profiled(TILED, "--on", "sim:h200", "--", "256", "64")
    launch = next(launch for launch in profile["launches"] if launch["kernel"] == "tiled_kernel")
    measured = next(one for one in H100[TILED] if (one["kernel"], one["grid"]) == ("tiled_kernel", launch["grid"]))
    for name in ("shared_loads", "shared_stores", "load_wavefronts", "store_wavefronts", "conflicts", "load_sectors"):
        assert launch["counts"][name] == measured["counts"][name], name


def test_each_tensor_of_an_op_has_its_bytes():
    (profile,) = profiled("gqa", "--on", "sim:h200")
    read = {one["tensor"]: one["read"] for one in profile["launches"][0]["traffic"]}
    assert read["K"] == read["V"] == 4 * 64 * 64 * 2 * 2  # four blocks a K/V head, each with its own 64 rows
    assert {one["tensor"]: one["read"] for one in profile["formula"]}["K"] == read["K"]
    assert profile["flops"] == 2 * 14 * 7 * 256 * 128


def test_a_transpose_has_conflicts_until_its_tile_is_padded():
    (profile,) = profiled(TRANSPOSE, "--on", "sim:h200")
    naive, shared, padded = profile["launches"]
    for launch, measured in zip(profile["launches"], H100["tests/lab/program/programs/transpose.cu"], strict=True):
        for name in ("load_wavefronts", "store_wavefronts", "conflicts", "load_sectors", "store_sectors"):
            assert launch["counts"][name] == measured["counts"][name], (launch["kernel"], name)
    assert naive["counts"]["conflicts"] == 0 == padded["counts"]["conflicts"]
    columns = [min(32, COLUMNS - first) for first in range(0, COLUMNS, 32)]
    rows = [min(32, ROWS - first) for first in range(0, ROWS, 32)]
    assert shared["counts"]["load_wavefronts"] == sum(row * column for row in rows for column in columns)
    assert shared["counts"]["conflicts"] == shared["counts"]["load_wavefronts"] - shared["counts"]["shared_loads"]
    assert padded["counts"]["load_wavefronts"] == padded["counts"]["shared_loads"]
    assert naive["sectors_of_a_store"] > 6 * padded["sectors_of_a_store"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gqa", "mla"])
def test_a_gpu_and_its_simulation_count_the_same_instructions(name):
    gpu, sim = (profile["launches"][0]["counts"] for profile in profiled(name, "--on", "gpu,sim:h200"))
    for key in ("tensor", "ldmatrix", "copies"):
        assert gpu[key] == sim[key]
    assert sim["load_sectors"] == pytest.approx(gpu["load_sectors"], rel=0.02)


HEADS = Path(__file__).parent / "heads"
H100_HEADS = json.loads(HEADS.with_suffix(".json").read_text())
"""ncu's counts of each launch of the scenarios of `heads/` (2026-11-25, llama.cpp b11549, nvcc 13.0)."""
EXACT = ("load_sectors", "load_requests", "global_loads", "store_sectors", "store_requests", "conflicts", "ldmatrix")
# ncu counts half-precision arithmetic of other kernels as tensor instructions, and has no cp.async in them.
MMA = (*EXACT, "tensor", "copies")
BEYOND_HEADS = {
    "96-decode": {"wavefronts": -32},
    "112-decode": {"wavefronts": -32},
    "320-decode": {"wavefronts": -512},
    "576-decode": {"wavefronts": -128},
    "576-prefill": {"wavefronts": -2048},
    "256-prefill": {"copies": -5, "global_loads": 5},
}
"""What the simulator counts beyond the H100 in mma kernels (docs/measurements/profile.md)."""


@pytest.mark.slow
@pytest.mark.night
@pytest.mark.parametrize("name", H100_HEADS)
def test_the_counts_are_an_h100_s(name):
    (case,) = profiled(HEADS / f"{name}.yaml", "--on", "sim:h200")
    for launch, measured in zip(case["launches"], H100_HEADS[name], strict=True):
        assert (launch["kernel"], launch["grid"]) == (measured["kernel"], measured["grid"])
        is_mma = launch["kernel"] == ATTENTION
        beyond = BEYOND_HEADS.get(name, {}) if is_mma else {}
        keys = (*(MMA if is_mma else EXACT), "wavefronts")
        assert {key: launch["counts"][key] - beyond.get(key, 0) for key in keys} == {
            key: measured["counts"][key] for key in keys
        }
