"""What the simulator counts of kernels of other head sizes, beside what Nsight Compute 2025.3 counted on an H100."""

import json
from pathlib import Path

import pytest

from tests.as_user import fattn_probe

pytestmark = pytest.mark.build
HEADS = Path(__file__).parent / "heads"
H100 = json.loads(HEADS.with_suffix(".json").read_text())
"""ncu's counts of each launch of the scenarios of `heads/` (2026-11-25, llama.cpp b11549, nvcc 13.0)."""
ATTENTION = "flash_attn_ext_f16"
EXACT = ("load_sectors", "load_requests", "global_loads", "store_sectors", "store_requests", "conflicts", "ldmatrix")
# ncu counts half-precision arithmetic of other kernels as tensor instructions, and has no cp.async in them.
MMA = (*EXACT, "tensor", "copies")
BEYOND = {
    "96-decode": {"wavefronts": -32},
    "112-decode": {"wavefronts": -32},
    "320-decode": {"wavefronts": -512},
    "576-decode": {"wavefronts": -128},
    "576-prefill": {"wavefronts": -2048},
    "256-prefill": {"copies": -5, "global_loads": 5},
}
"""What the simulator counts beyond the H100 in mma kernels (docs/measurements/profile.md)."""
QUICK = ("96-decode",)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow, pytest.mark.night]) for name in H100]
)
def test_the_counts_are_an_h100_s(name):
    (case,) = json.loads(fattn_probe("profile", "--json", str(HEADS / f"{name}.yaml"), "--on", "sim:h200").stdout)[
        "profiles"
    ]
    for launch, measured in zip(case["launches"], H100[name], strict=True):
        assert (launch["kernel"], launch["grid"]) == (measured["kernel"], measured["grid"])
        is_mma = launch["kernel"] == ATTENTION
        beyond = BEYOND.get(name, {}) if is_mma else {}
        keys = (*(MMA if is_mma else EXACT), "wavefronts")
        assert {key: launch["counts"][key] - beyond.get(key, 0) for key in keys} == {
            key: measured["counts"][key] for key in keys
        }
