"""The flags that decide which multiply-adds g++ fuses."""

import platform
import shutil
import subprocess

import pytest

from fattn_probe.llama.build.flags import SIM_QUICK
from fattn_probe.llama.build.simulator_flags import ARITHMETIC, SIM_OPTIMISATION, X86_V3

LOOP = """
float dot(const float * values, const int * columns, const float * x, int n) {
    float sum = 0.0f;
    for (int i = 0; i < n; i++) {
        sum += values[i] * x[columns[i]];
    }
    return sum;
}
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="fused multiply-adds have other names here")
@pytest.mark.parametrize("tuning", ["-mtune=generic", "-mtune=znver3"])
@pytest.mark.parametrize("flavour", ["release", "check", "count"])
def test_a_sum_of_products_in_a_loop_is_fused_whatever_the_processor(tuning, flavour):
    """g++ 13 tunes `generic` as older ones tune `znver3`: it would keep the product and the sum apart."""
    words = [
        shutil.which("g++"),
        *SIM_OPTIMISATION[flavour],
        *(SIM_QUICK if flavour == "release" else ()),
        *X86_V3,
        *ARITHMETIC,
        tuning,
        "-S",
        "-x",
        "c++",
        "-",
        "-o-",
    ]
    made = subprocess.run(words, input=LOOP, capture_output=True, text=True, check=True).stdout
    assert "vfmadd" in made and "vmulss" not in made
