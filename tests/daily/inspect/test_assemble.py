"""Facts from gdb's texts."""

import math

import numpy as np
import pytest

from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.daily.inspect.assemble import choice_of, mask_ends_of, op_params_of, variables_of
from tests.made import CAUSAL, case_of, shape

KERNEL = "flash_attn_ext_f16<64, 64, 8, 8, false, false, false>"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("14", 14),
        ("true", True),
        ("0.333333343", 0.33333334),
        ("1", 1),
        ("inf", math.inf),
        ("{x = 132, y = 1, z = 1}", [132, 1, 1]),
        ("@0x7fffffffcf30: {x = 32, y = 4, z = 1}", [32, 4, 1]),
        ("@0x7fffffffccac: true", True),
        ("GGML_TYPE_F16", "GGML_TYPE_F16"),
        ("<optimized out>", "<optimized out>"),
        ("<error reading variable: Cannot access memory at address 0x0>",) * 2,
    ],
)
def test_a_variable(text, value):
    (found,) = variables_of({"name": text}).values()
    assert (type(found), found) == (type(value), value)


def test_a_nan_with_its_bits():
    assert math.isnan(variables_of({"scale": "-nan(0x7fffff)"})["scale"])


@pytest.mark.parametrize(
    "pointer",
    [
        f"(fattn_kernel_t) 0x7ffff7ca9871 <{KERNEL}(char const*, float2*, uint3)>",  # gdb
        f"(fattn_kernel_t) 0x7fff <{KERNEL}>",  # cuda-gdb names kernels without parameters
        f"{{void (const char *, int)}} 0x401ac1 <{KERNEL}(char const*, int)>",
    ],
)
def test_the_kernel_that_a_pointer_points_to(pointer):
    assert choice_of({"kernel": pointer, "config": {}}, ()).kernel == "flash_attn_ext_f16<64,64,8,8,false,false,false>"


def test_an_array_that_cannot_be_read_is_refused():
    assert op_params_of("{1040187392, 0, 0, 10, 0 <repeats 12 times>}")["scale"] == 0.125
    with pytest.raises(ValueError, match="not an array as gdb prints it: <error"):
        op_params_of("<error: Cannot access memory at address 0x8>")


def test_the_end_of_what_a_query_sees_is_read_from_the_mask():
    case = case_of(shape(64, 4, 1, 3, 32, CAUSAL))
    inputs, view = make_inputs(case), case.op.operands["mask"]
    memory = inputs[view.root].copy()
    rows = memory[view.offset : view.offset + 3 * view.nb[1]].view(np.float16).reshape(3, -1)
    rows[...] = -np.inf
    rows[0, 4], rows[2, :8] = -1, 0
    assert mask_ends_of(case.op, inputs | {view.root: memory}) == ((5, 0, 8),)
