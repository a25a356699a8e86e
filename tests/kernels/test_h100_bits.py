"""Kernels give on a simulated H200 the bits that an H100 gave (2026-11-23)."""

import importlib.util
import json
from pathlib import Path

import pytest

from tests.as_user import fattn_probe

pytestmark = pytest.mark.build
MEASURED = {
    (row["case"], row["kernel"]): row["output"] for row in json.loads((Path(__file__).parent / "h100.json").read_text())
}


@pytest.mark.parametrize("case", ["gqa", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mha", "prefill"))])
def test_the_bits_are_those_of_an_h100(case):
    kernels = ["llama", "naive", "tiled", *(["tilelang"] if importlib.util.find_spec("tilelang") else [])]
    done = fattn_probe("compare", case, "--kernel", ",".join(kernels), "--on", "sim:h200", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert [row["contender"] for row in rows] == kernels
    assert {row["contender"]: row["output"][:16] for row in rows} == {name: MEASURED[case, name] for name in kernels}


def test_what_tilelang_compiles_for_hopper_has_the_bits_of_its_cuda_for_ampere():
    cases = {case for case, kernel in MEASURED if kernel == "tilelang:jit"}
    assert cases == {"gqa", "mha", "prefill", "causal-4k"}
    assert all(MEASURED[case, "tilelang:jit"] == MEASURED[case, "tilelang"] for case in cases)
