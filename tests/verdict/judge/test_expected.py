"""As designed or not: outputs held against a prediction and against a model, with errors of known size."""

from dataclasses import replace

import numpy as np
import pytest

from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.verdict.judge.expectation import bit_exact
from fattn_probe.verdict.measure.expected import Expected, hold
from fattn_probe.verdict.measure.verdict import Status, judge
from tests.verdict.made import predicted

SHAPE = (2, 16, 4, 64)
RMSE = 1e-3
RNG = np.random.default_rng(0)
REFERENCE, NOISE = (values / np.sqrt(np.mean(values**2)) for values in RNG.standard_normal((2, *SHAPE)))
NOISE *= RMSE
DEFAULT = Tolerance()


PREDICTED = Expected(lambda: predicted(SHAPE))
MODEL = (REFERENCE + NOISE).astype(np.float32)
MODELLED = replace(PREDICTED, model=MODEL)


def output(change=0.0, where=...):
    dst = (REFERENCE + NOISE).astype(np.float32)
    dst[where] += np.float32(change)
    return dst


def test_the_expected_error_is_as_designed_and_says_so():
    verdict = judge(output(), REFERENCE, DEFAULT, expected=PREDICTED)
    assert verdict.status is Status.PASS
    assert verdict.reason.startswith("as designed: RMSE 1.00 of the predicted, largest error 0.")
    assert verdict.design.rmse_by_predicted == pytest.approx(1.0, abs=0.02)
    assert verdict.design.why == "mma-f16 sums P.V in f16"


def test_a_model_that_is_zero_everywhere_has_no_error_to_measure_by():
    zeros = np.zeros(SHAPE)
    expected = Expected(model=zeros.astype(np.float32))
    assert hold(zeros.astype(np.float32), zeros, expected).design.passes
    design = hold(np.full(SHAPE, 1e-3, np.float32), zeros, expected).design
    assert not design.passes
    assert design.off_model == np.inf
    assert design.reason.startswith("the output differs from the rounding model, whose own error is 0")
    dst, some = MODEL.copy(), REFERENCE.copy()
    dst[0, 0], some[0, 0] = 1e-3, 0.0
    reason = hold(dst, some, Expected(model=some.astype(np.float32))).design.reason
    assert reason.endswith("a row differs from the rounding model, whose own error is 0")


def with_other_bits(share):
    """An output that differs from the model by one bit in a share of the elements, far below the kernel's noise."""
    dst = output()
    other = np.random.default_rng(1).random(SHAPE) < share
    dst[other] = np.nextafter(dst[other], np.float32(9))
    return dst


@pytest.mark.parametrize(("other", "warned"), [(0.0, False), (0.05, False), (0.72, True), (1.0, True)])
def test_a_share_of_bits_far_below_the_usual_warns_without_failing(other, warned):
    verdict = judge(with_other_bits(other), REFERENCE, DEFAULT, expected=replace(MODELLED, bit_exact=True))
    assert verdict.status is Status.PASS
    share = f"{100 * verdict.design.equal_bits:.2g} %"
    words = f"accuracy warning: {share} of the elements equal the rounding model in every bit; usually all do"
    assert verdict.reason.endswith(words) == warned
    assert verdict.accuracy.passes == (not warned)


@pytest.mark.parametrize("expected", [MODELLED, replace(PREDICTED, bit_exact=True), Expected(bit_exact=True), None])
def test_a_share_of_bits_is_omitted_without_a_model_or_if_unknown(expected):
    assert judge(with_other_bits(0.72), REFERENCE, DEFAULT, expected=expected).accuracy.passes


def test_a_wrong_output_gets_no_warning_about_few_bits():
    dst = output(0.5 * RMSE)
    verdict = judge(dst, REFERENCE, DEFAULT, expected=replace(MODELLED, bit_exact=True))
    assert verdict.status is Status.FAIL
    assert "differs from the rounding model" in verdict.reason


@pytest.mark.parametrize(
    ("engine", "flavour", "arch", "known"),
    [
        ("sim", "release", 75, True),
        ("sim", "debug", 90, False),
        ("sim", "check", 90, False),
        ("cuda", "release", 90, True),
        ("cuda", "release", 89, False),
        ("cuda", "debug", 90, False),
    ],
)
def test_where_a_correct_kernel_has_the_models_every_bit(engine, flavour, arch, known):
    assert bit_exact({"engine": engine, "flavour": flavour}, arch) == known
