"""The rounding models equal outputs of a real H200 and of emulated AMD GPUs in every bit; builds nothing."""

from dataclasses import replace

import numpy as np
import pytest

from fattn_probe.cases.device import load_devices
from fattn_probe.cases.scenario import expand, load
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.launch.architecture import RDNA3, arch_number
from fattn_probe.verdict.measure.metrics import nmse
from fattn_probe.verdict.truth.reference.adapter import reference_of
from fattn_probe.verdict.truth.rounding_model import arithmetic
from fattn_probe.verdict.truth.rounding_model.functions import LOG2_E
from fattn_probe.verdict.truth.rounding_model.functions_amd import exp, tanh
from fattn_probe.verdict.truth.rounding_model.matrix_amd import dot2, matrix_sum
from fattn_probe.verdict.truth.rounding_model.operands import operands_of
from maintain.agreement import agreement, read_recording
from tests import test_second_opinion as second_opinion
from tests.made import ROOT, case_of, launch_of, shape
from tests.native import test_amd_matrix as instructions
from tests.verdict.truth.error_model import test_error_amd as simulated
from tests.verdict.truth.models import model_of

RECORDED = read_recording(ROOT / "tests/data/h200", None, None)[1]
FAULTS = [ROOT / f"scenarios/known-faults/{name}.yaml" for name in ("masked-rows", "q8-race")]
FILES = [*sorted((ROOT / "scenarios").glob("*.yaml")), *FAULTS]
CASES = {case.name: case for path in FILES for case in expand(load(path)) if case.name in RECORDED}
LARGE = 6e8  # floating-point operations


def marks(case):
    return [pytest.mark.night] if case.op.sizes.flop > LARGE else []


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(case)) for name, case in CASES.items()])
def test_every_bit_is_the_h200_s(name):
    case, recorded = CASES[name], RECORDED[name]
    found = model_of(case, make_inputs(case), recorded.launches, 90)
    assert found is not None
    assert agreement(recorded, found, recorded.launches).all_bits


def test_correctly_rounded_powers_of_two_come_close(monkeypatch):
    """The hardware's exponential is within 2 ulp: few P round to another f16, little beside the kernel's own noise."""
    case, recorded = CASES["gqa"], RECORDED["gqa"]
    inputs = make_inputs(case)
    model = model_of(case, inputs, recorded.launches, 90)
    rounded = lambda x: np.exp2((x * LOG2_E).astype(np.float64)).astype(np.float32)  # noqa: E731
    monkeypatch.setattr(arithmetic, "NVIDIA", replace(arithmetic.NVIDIA, exp=rounded))
    near = model_of(case, inputs, recorded.launches, 90)
    assert 0.05 < np.mean(model.view(np.uint32) == near.view(np.uint32)) < 0.95
    assert nmse(near, model.astype(np.float64)) < 0.02 * nmse(model, reference_of(case.op, inputs))


def test_no_model_of_an_unknown_kernel():
    case = CASES["gqa"]
    assert model_of(case, make_inputs(case), RECORDED["gqa"].launches[1:], 90) is None


TYPES = ("f16", "f16", "f32", "f32")


def same_bits(found, expected):
    nan = np.isnan(found) & np.isnan(expected)
    np.testing.assert_array_equal(np.where(nan, 0, found.view(np.uint32)), np.where(nan, 0, expected.view(np.uint32)))


def decoded(bits, kind):
    return instructions.decode(bits.astype(np.uint32), kind).astype(np.float32)


@pytest.mark.parametrize("gfx", ["gfx908", "gfx90a", "gfx942"])
def test_sums_on_cdna_have_the_bits_of_the_published_model(gfx):
    of = f"{gfx}/v_mfma_f32_16x16x16_f16"
    a, b, c, d = (decoded(instructions.RESULTS[f"{of}/{name}"], kind) for name, kind in zip("abcd", TYPES, strict=True))
    with np.errstate(invalid="ignore", over="ignore"):
        same_bits(matrix_sum(a, b, c, arch_number(gfx), half=False), d)


@pytest.mark.parametrize("gfx", instructions.RDNA)
def test_sums_on_rdna_have_the_bits_of_the_hardware(gfx):
    of_f16 = [row for row in instructions.measured_products(gfx) if row[0].endswith("_f16")]
    assert of_f16
    for instruction, *operands in of_f16:
        _, of_sums = instructions.types(instruction)
        kinds = ("f16", "f16", of_sums, of_sums)
        a, b, c, d = (decoded(bits, kind) for bits, kind in zip(operands, kinds, strict=True))
        with np.errstate(invalid="ignore", over="ignore"):
            same_bits(matrix_sum(a, b, c, arch_number(gfx), half=of_sums == "f16"), d)


@pytest.mark.parametrize("gfx", instructions.RDNA)
def test_dot_products_on_rdna_have_the_bits_of_the_hardware(gfx):
    rows = [row for row in instructions.HARDWARE if (row["instruction"], row["gfx"]) == ("v_dot2_f32_f16", gfx)]
    a, b, c, d = (instructions.words(" ".join(row[name] for row in rows)) for name in "abcd")
    a, b = (np.stack([decoded(x & 0xFFFF, "f16"), decoded(x >> 16, "f16")]) for x in (a, b))
    with np.errstate(invalid="ignore", over="ignore"):
        same_bits(dot2(a, b, decoded(c, "f32"), arch_number(gfx)), decoded(d, "f32"))


def test_functions_are_accurate_and_end_where_those_of_amd_s_library_do():
    x = np.linspace(-103, 88, 20000, dtype=np.float32)
    for function, exact, ulps in ((exp, np.exp, 1), (tanh, np.tanh, 2)):
        expected = exact(x.astype(np.float64))
        assert (np.abs(function(x) - expected) <= ulps * np.spacing(np.abs(expected.astype(np.float32)))).all()
    ends = np.array([0, -0.0, 88.8, np.inf, -np.inf, -1e30, np.nan], np.float32)
    same_bits(exp(ends), np.array([1, 1, np.inf, np.inf, 0, 0, np.nan], np.float32))


@pytest.mark.parametrize(("type_", "cache", "negative"), [("q4_0", 64, False), ("q4_0", 96, True), ("q5_0", 64, True)])
def test_zeros_of_a_converted_cache_have_the_sign_that_its_conversion_leaves(type_, cache, negative):
    """RDNA3 adds a negative zero as a unit too much. A contiguous q4_0 is converted by multiply-adds."""
    case = case_of(shape(64, 2, 2, 2, 64, f"type_K: {type_}\nlayout: {{K: {{kind: view, rows: {cache}}}}}"))
    K = operands_of(case, make_inputs(case), RDNA3).K
    assert (K == 0).any()
    assert np.signbit(K[K == 0]).any() == negative


@pytest.mark.parametrize("name", simulated.recorded())
def test_every_bit_is_the_simulator_s(name):
    (_, device), (dst, launches) = simulated.EVERY[name], simulated.recorded()[name]
    case, arch = simulated.case_of(name), arch_number(load_devices()[device].arch)
    same_bits(model_of(case, make_inputs(case), launches, arch), dst)


@pytest.mark.parametrize(("gfx", "name"), second_opinion.ALL)
def test_every_bit_is_that_of_clang_s_machine_code(gfx, name):
    """Run in tinygrad's emulator, where it sums as the GPU does."""
    case, launches = second_opinion.CASES[name], second_opinion.RECORDED[gfx][name]["launches"]
    found = model_of(case, make_inputs(case), [launch_of(**launch) for launch in launches], arch_number(gfx))
    same_bits(found, second_opinion.output(gfx, name, second_opinion.change_of(gfx, name)))
