import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fattn_probe.daily.regress.changes import last_step, levels


def series(*pieces, noise=0.005, seed=0):
    rng = np.random.default_rng(seed)
    parts = [value * (1 + noise * rng.standard_normal(count)) for value, count in pieces]
    return np.concatenate(parts).tolist()


def test_a_step_is_found_where_it_is():
    found = levels(series((1.0, 20), (1.1, 10)))
    assert [(level.start, level.stop) for level in found] == [(0, 20), (20, 30)]
    assert found[1].value == pytest.approx(1.1, rel=0.01)


def test_the_last_step_has_both_levels():
    before, after = last_step(series((1.0, 20), (1.1, 5)))
    assert after.value / before.value == pytest.approx(1.1, rel=0.01)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 1.0], [1.0] * 30, series((1.0, 30)), [1.0, 2.0]])
def test_no_step(values):
    assert last_step(values) is None


def test_a_slow_run_and_noise_are_no_step():
    values = series((1.0, 30))
    values[12] = 1.5
    assert last_step(values) is None
    values[-1] = 1.5
    assert last_step(values) is None
    # Of 300 series of nights without a change, at 1 % noise.
    alarms = sum(last_step(series((1.0, 40), noise=0.01, seed=seed)) is not None for seed in range(300))
    assert alarms <= 3


@settings(max_examples=30)
@given(st.integers(8, 25), st.integers(4, 15), st.floats(1.06, 3.0), st.integers(0, 10**6))
@example(11, 6, 3.0, 510510)  # the slower level, as noisy as it is slow, falls in two
def test_any_step_well_above_the_noise_is_seen(first, second, factor, seed):
    step = last_step(series((1.0, first), (factor, second), noise=0.002, seed=seed))
    assert step is not None
    assert step[0].stop == first
