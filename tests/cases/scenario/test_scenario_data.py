"""The distributions have the moments they promise, and are reproducible."""

import numpy as np
import pytest

from fattn_probe.cases.op.op import TYPE_NAMES
from fattn_probe.cases.op.values import count_non_finite, decode, encode, nan_block, view_values
from fattn_probe.cases.scenario import Scenario, expand
from fattn_probe.cases.scenario.data import Constant, Extreme, Fa3Outliers, FarBelowZero, LargeLogits, Normal, Uniform
from fattn_probe.cases.scenario.draw import Logits, draw, stream
from fattn_probe.cases.scenario.inputs import make_inputs

LOGITS = Logits(0.125, 64)
MANY = (400, 1000)


def sample(data, name="V"):
    return draw(data, name, MANY, stream(1, 2), LOGITS)


def test_moments_of_the_distributions():
    values = sample(Uniform(scale=0.1, mean=1))
    assert 0.9 <= values.min() < 0.901
    assert 1.099 < values.max() <= 1.1
    assert values.mean() == pytest.approx(1, abs=1e-3)
    values = sample(Normal(kind="normal", scale=3, mean=-2))
    assert values.mean() == pytest.approx(-2, abs=0.03)
    assert values.std() == pytest.approx(3, rel=0.01)
    assert np.all(sample(Constant(kind="constant", value=0.5)) == 0.5)
    values = sample(Fa3Outliers(kind="fa3_outliers"))
    assert values.var() == pytest.approx(1 + 0.001 * 100, rel=0.02)
    assert 0.0003 < (np.abs(values) > 5).mean() < 0.001
    values = sample(Extreme(kind="extreme", magnitude=5000, probability=0.02))
    assert (np.abs(values) == 5000).mean() == pytest.approx(0.02, rel=0.05)
    assert (values == 5000).sum() > 0 < (values == -5000).sum()
    assert np.abs(values[np.abs(values) < 5000]).max() <= 1


def test_logits_are_as_large_and_as_far_below_zero_as_asked_for():
    Q = draw(LargeLogits(kind="large_logits", logit=60), "Q", (500, 64), stream(0, 1), LOGITS)
    K = draw(Normal(kind="normal"), "K", (500, 64), stream(0, 2), LOGITS)
    assert (0.125 * Q @ K.T).std() == pytest.approx(60, rel=0.05)
    data = FarBelowZero(kind="far_below_zero", logit=-1000)
    Q, K = (draw(data, name, (500, 64), stream(0, number), LOGITS) for number, name in enumerate("QK"))
    logits = 0.125 * Q @ K.T
    assert logits.mean() == pytest.approx(-1000, rel=0.01)
    assert logits.max() < -900


def scenario(**more):
    return Scenario.model_validate(
        {"version": 1, "about": "x", "hsk": 32, "n_head": 4, "n_q": 5, "n_kv": 40, "sinks": True} | more
    )


def test_inputs_depend_on_the_seed_and_a_tensor_can_have_one_of_its_own():
    first, again, other = (make_inputs(expand(scenario(seed=seed))[0]) for seed in (1, 1, 2))
    for name, data in first.items():
        np.testing.assert_array_equal(data, again[name])
        assert not np.array_equal(data, other[name])
    plain = make_inputs(expand(scenario(seed=1))[0])
    reseeded = make_inputs(expand(scenario(seed=1, data={"K": {"kind": "uniform", "seed": 2}}))[0])
    assert {name for name in plain if not np.array_equal(plain[name], reseeded[name])} == {"K"}


def test_the_bytes_of_a_case_never_change_silently():
    """If this fails, captures and histories made before are of other inputs: raise INPUTS_VERSION with it."""
    (case,) = expand(scenario(seed=3, mask={"kind": "random"}))
    inputs = make_inputs(case)
    first = view_values(case.op.tensors["Q"], inputs)[0, 0, 0, :3]
    assert first.tolist() == [0.6295431852340698, 0.4801926612854004, 0.043451786041259766]
    sums = {name: int(data.astype(np.int64).sum()) for name, data in inputs.items()}
    assert sums == {"Q": 312351, "K": 1256248, "V": 1252948, "mask": 46719, "sinks": 1951}


def test_digest_follows_the_op_and_its_inputs_only():
    plain = expand(scenario())[0].digest
    assert len(plain) == 16
    same: list[dict] = [
        {"about": "y"},
        {"device": "cpu"},
        {"tolerance": {"nmse": 1}},
        {"expect": {"a": 1}},
        {"hsv": 32},
    ]
    assert {expand(scenario(**more))[0].digest for more in same} == {plain}
    different: list[dict] = [{"seed": 1}, {"n_kv": 41}]
    different += [{"data": {"V": {"kind": "normal"}}}, {"layout": {"K": {"kind": "view"}}}]
    assert len({expand(scenario(**more))[0].digest for more in different} | {plain}) == 5


ERRORS = {"f32": 0, "f16": 5e-4, "bf16": 4e-3, "q8_0": 4.5e-3, "q5_0": 0.065, "q5_1": 0.035, "q4_0": 0.13, "q4_1": 0.07}


@pytest.mark.parametrize("type_", TYPE_NAMES)
def test_encoding_loses_no_more_than_the_type_must_and_keeps_zeros_and_nan(type_):
    values = 2 * stream(0, 0).random((100, 64), np.float32) - 1
    back = decode(encode(values, type_), type_).reshape(values.shape)
    assert np.abs(back - values).max() <= ERRORS.get(type_, 0.13)
    # Values beyond a type are not finite and raise no warning; judging refuses them, with a message of its own.
    values = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32) * np.float32(1e30)
    finite = type_ in ("f32", "bf16")
    assert (count_non_finite(encode(values, type_), type_) == 0) == finite
    assert np.all(decode(encode(np.zeros((3, 32), np.float32), type_), type_) == 0)
    assert np.all(np.isnan(decode(nan_block(type_), type_)))
