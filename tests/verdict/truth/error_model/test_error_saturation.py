"""V = 1 +- 0.1 at contexts so long that f16 accumulators stand still: the bound holds there too, row by row.

The rounding-faithful model stands for the kernel, as one block of an H200 goes through all KV rows of a tile.
"""

from functools import cache

import numpy as np
import pytest

from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.verdict.truth.error_model.accumulate import Chains, accumulate
from fattn_probe.verdict.truth.error_model.rounding import HALF, added_error, largest_bias
from fattn_probe.verdict.truth.reference.adapter import operand_values, reference_of
from tests.made import CAUSAL, case_of, launch_of, shape
from tests.verdict.truth.models import model_of, of_scenario, predicted

DATA = "data: {{V: {{kind: uniform, mean: {}, scale: 0.1}}}}"
LAUNCH = launch_of("flash_attn_ext_f16<128, 128, 16, 4, false, false, false>", [1, 1, 1])
LAUNCH_64 = "flash_attn_ext_f16<64, 64, 16, 2, false, false, false>"
LENGTHS = [
    (16384, 8),
    pytest.param(65536, 6, marks=pytest.mark.night),
    pytest.param(131072, 3, marks=pytest.mark.night),
]


@cache
def measured(n_kv, n_q, mean=1):
    case = case_of(shape(128, 4, 1, n_q, n_kv, CAUSAL, DATA.format(mean)))
    inputs = make_inputs(case)
    values = operand_values(case.op, inputs)
    error = model_of(case, inputs, [LAUNCH], 90) - reference_of(case.op, inputs)
    return case, values, error


@pytest.mark.parametrize(("n_kv", "n_q"), LENGTHS)
def test_no_row_is_beyond_its_bound_whether_it_was_sampled_or_not(n_kv, n_q):
    case, values, error = measured(n_kv, n_q)
    few, all_ = (predicted(case.op, values, [LAUNCH], 90, most=most) for most in (1, n_kv * 4 * n_q))
    assert few.sampled.all(axis=(0, 2)).sum() == 2
    assert all_.sampled.all()
    for prediction in (few, all_):
        assert (np.abs(error) <= 0.9 * prediction.bound).all()
        assert (prediction.bound < 0.9).all()  # so an output of zeros cannot come from a correct kernel
    assert (all_.bound.mean(axis=3) < few.bound.mean(axis=3) * 1.01).all()


@pytest.mark.parametrize(("n_kv", "n_q"), LENGTHS)
def test_the_loss_of_each_row_is_predicted(n_kv, n_q):
    case, values, error = measured(n_kv, n_q)
    prediction = predicted(case.op, values, [LAUNCH], 90, most=n_kv * 4 * n_q)
    by_row = error.mean(axis=3)
    assert np.corrcoef(by_row.ravel(), prediction.row_mean_error.ravel())[0, 1] > 0.999
    assert prediction.mean_error == pytest.approx(error.mean(), rel=0.1)
    assert prediction.rmse == pytest.approx(np.sqrt(np.square(error).mean()), rel=0.1)
    assert "increments below half an ulp of the f16 accumulator are lost" in prediction.lost


def test_data_of_zero_mean_lose_nothing_and_keep_their_bound():
    case, values, error = measured(16384, 8, 0)
    prediction = predicted(case.op, values, [LAUNCH], 90, most=1)
    assert (prediction.unsampled_loss < 0.05 * prediction.bound.min()).all()
    assert (np.abs(error) <= prediction.bound).all()


def test_nothing_but_the_spread_bounds_a_mean_error():
    mean = np.linspace(0, 1, 401)
    for deviation in (0.0, 0.05, 0.2, 0.4, 0.6, 0.9):
        first, _ = added_error(mean, np.full_like(mean, deviation))
        most = float(largest_bias(np.array(deviation)))
        assert np.abs(first).max() <= most * 1.001 + 1e-6
        assert deviation == 0.0 or most < 2 * np.abs(first).max() + 1e-4
    assert largest_bias(np.array(0.0)) == 0.5


@pytest.mark.parametrize("value", [1, 3, -0.7, 40000])
def test_the_sums_of_one_v_are_known_rounding_by_rounding(value):
    """All elements of a row have one error, whose sign and size follow from the weights that the kernel rounds."""
    text = shape(64, 2, 1, 8, 300, f"data: {{V: {{kind: constant, value: {value}}}}}")
    model, reference, prediction = of_scenario(text, LAUNCH_64, [1, 1, 1], 90)
    error = (model - reference).mean(axis=3)
    if value == 40000:  # a sum of eighths of it overflows
        assert np.isinf(prediction.bound).all() and prediction.known.all()
    else:
        assert np.square(error - prediction.row_mean_error).mean() < 0.01 * np.square(error).mean()


@pytest.mark.parametrize("value", [4000, 3000, 1000.5, 1, 0.1])
@pytest.mark.parametrize("blocks", [8, 7], ids=["64 KV rows a block", "up to 128"])
def test_equal_increments_have_the_predicted_error_and_about_twice_that_as_their_bound(value, blocks):
    """Found by `nightly` on an MI50: 4000/8 lies in the middle of two numbers, and each addition is rounded down."""
    data = f"data: {{Q: {{kind: constant, value: 0}}, V: {{kind: constant, value: {value}}}}}"
    text, kernel = shape(64, 2, 2, 3, 512, CAUSAL, data), "flash_attn_tile<64, 64, 4, 1, false>"
    model, reference, prediction = of_scenario(text, kernel, [1, blocks, 2], 70)
    error = model - reference
    assert prediction.mean_error == pytest.approx(error.mean(), rel=0.1, abs=1e-4 * value)
    assert (np.abs(error) <= prediction.bound).all()
    assert (prediction.bound <= 2.1 * np.abs(error) + 1e-3 * value).all()


@pytest.mark.parametrize(
    ("small", "number", "mean", "spread"),
    [(9e-5, 6, 1, 0.058), (7e-5, 20, 1.05, 0.058), (9e-5, 200, 1, 0.058), (1e-4, 500, 1, 0.6), (5e-4, 500, 1, 0.3)],
)
def test_channels_whose_sums_lie_on_both_sides_of_a_power_of_two_have_errors_of_their_own(small, number, mean, spread):
    """To a large weight, small equal ones are added: above a power of two, channels round them in a different way."""
    weight = np.array([[[0.125, *[np.float16(small)] * number]]], np.float32)
    rng, held, exact = np.random.default_rng(0), np.zeros(4000, np.float16), np.zeros(4000)
    for p in weight.ravel().astype(np.float64):
        added = p * rng.normal(mean, spread, held.shape).astype(np.float16)
        held, exact = (held + added).astype(np.float16), exact + added
    error, square, nothing = held - exact, np.float32(spread**2) * weight**2, np.zeros_like(weight)
    top = weight == 0.125
    chains = Chains(weight, square, nothing, weight * top, square * top, nothing + 1, top[:, :, 1:1])
    found = accumulate(chains, HALF, mean**2, 0.0)
    assert np.sqrt(found.variance.item()) == pytest.approx(error.std(), rel=0.12)
    assert mean * found.loss.item() == pytest.approx(error.mean(), abs=0.2 * np.sqrt(np.square(error).mean()))
