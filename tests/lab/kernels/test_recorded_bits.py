"""Kernels give on a simulated H200 the bits that an H200 (2026-11-24) and an H100 (2026-11-23) gave."""

import importlib.util
import json
from pathlib import Path

import pytest

from tests.as_user import answer

pytestmark = pytest.mark.build


def outputs(gpu):
    """The start of each output's sha256, by case and kernel; empty if the kernel does not take the case."""
    rows = json.loads((Path(__file__).parent / f"{gpu}.json").read_text())
    return {(row["case"], row["kernel"]): row["output"] for row in rows}


MEASURED = outputs("h200")


@pytest.mark.parametrize("case", ["gqa", *(pytest.param(name, marks=pytest.mark.night) for name in ("mha", "prefill"))])
def test_the_bits_are_those_of_an_h200(case):
    kernels = ["llama", "naive", "tiled", *(["tilelang"] if importlib.util.find_spec("tilelang") else [])]
    rows = answer("compare", case, "--kernel", ",".join(kernels), "--on", "sim:h200")["rows"]
    assert [row["contender"] for row in rows] == kernels
    assert {row["contender"]: row["output"][:16] for row in rows} == {name: MEASURED[case, name] for name in kernels}


def test_an_h100_gave_the_bits_of_an_h200():
    assert len(MEASURED) == 40 and sum(map(bool, MEASURED.values())) == 38
    assert outputs("h100") == MEASURED


def test_tiled_was_faster_than_naive_on_an_h200():
    rows = json.loads((Path(__file__).parent / "h200.json").read_text())
    times = {(row["case"], row["kernel"]): row["microseconds"] for row in rows}
    assert all(min(times[case, "naive"]) >= 15 * max(times[case, "tiled"]) for case in ("prefill", "causal-4k"))


def test_what_tilelang_compiles_for_hopper_has_the_bits_of_its_cuda_for_ampere():
    cases = {case for case, kernel in MEASURED if kernel == "tilelang:jit"}
    assert cases == {"gqa", "mha", "prefill", "causal-4k"}
    assert all(MEASURED[case, "tilelang:jit"] == MEASURED[case, "tilelang"] for case in cases)
