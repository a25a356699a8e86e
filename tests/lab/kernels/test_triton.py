"""The Triton kernel, in Triton's interpreter, and compiled."""

import os
import subprocess
import sys

import numpy as np
import pytest

from fattn_probe.cases.device import Target
from fattn_probe.lab.kernels.contender import How
from fattn_probe.lab.kernels.torch_attention import INTERPRET, attend_in_triton
from tests.lab.kernels.attention_case import assert_as_rounded, case, needs

pytestmark = needs("triton", "torch", extra="triton")

CASES = {
    "one head": case(1, 1, 1, 64, 128, 64, 64),
    "groups": case(2, 4, 2, 70, 200, 64, 64, causal=True),
    "head sizes": case(1, 2, 1, 33, 77, 80, 96, causal=True),
    "head size 128": case(1, 2, 2, 65, 130, 128, 128),
    "mask": case(1, 2, 1, 40, 90, 64, 64, masked=True),
    "mask, causal": case(1, 2, 1, 100, 203, 64, 64, masked=True, causal=True),
    "more queries than KV rows": case(1, 2, 1, 70, 50, 64, 64, causal=True),
}


@pytest.mark.parametrize("problem", CASES.values(), ids=CASES)
def test_the_error_is_that_of_p_in_f16(problem):
    made = attend_in_triton(problem.arrays, target=Target("cpu"), how=How())
    assert made.o.dtype == made.lse.dtype == np.float32
    assert made.seconds == ()
    assert_as_rounded(problem, made.o, made.lse)


COMPILED = """
from fattn_probe.lab.kernels.triton_kernel import compiled
ptx = compiled(80, 64, 128, causal=True, masked=False).asm["ptx"]
assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in ptx and "cp.async" in ptx and ".target sm_80" in ptx
"""


@pytest.mark.slow
def test_it_compiles_for_a_gpu():
    """In a process of its own: Triton interprets in this one."""
    compiling = {name: value for name, value in os.environ.items() if name != INTERPRET}
    subprocess.run([sys.executable, "-c", COMPILED], check=True, timeout=300, env=compiling)
