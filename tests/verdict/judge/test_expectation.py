"""What is expected of a run, and what is missing: the error model, the rounding model, or the constants of a source.

And which cases are checked by a sample of rows, and which are run in part.
"""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.llama.launch.architecture import CDNA3
from fattn_probe.llama.launch.constants import default_constants
from fattn_probe.llama.launch.families import MMA_F16, VEC
from fattn_probe.verdict.judge import checks as limits
from fattn_probe.verdict.judge import expectation
from fattn_probe.verdict.judge.checks import Checks, is_huge, sample_of
from fattn_probe.verdict.judge.expectation import MODEL_FLOP, bit_exact, expected_of, uses_model
from tests.verdict.made import predicted

SHAPE = (1, 6, 2, 4)
MODEL = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)


@pytest.fixture
def models(monkeypatch):
    """Both models, and what they were asked."""
    asked: dict[str, Any] = {"prediction": predicted(SHAPE), "model": MODEL}

    def kernel_of(op, geometry, arch):
        return asked["prediction"]

    def predict(op, values, kernel):
        return kernel

    def predict_rows(op, values, kernel, rows):
        return predicted((1, len(rows), 1, 4))

    def model_of(case, inputs, kernel, arch, *, constants, wanted):
        asked["constants"], asked["wanted"] = constants, wanted
        return asked["model"]

    monkeypatch.setattr(expectation, "operand_values", lambda op, inputs: {})
    for one in (kernel_of, predict, predict_rows, model_of):
        monkeypatch.setattr(expectation, one.__name__, one)
    return asked


CASE: Any = SimpleNamespace(
    op=SimpleNamespace(sizes=SimpleNamespace(flop=1.0, n_seq=1, n_q=6, n_head=2), roots={}), recorded=False
)
GEOMETRY: Any = SimpleNamespace(kernel=SimpleNamespace(family=MMA_F16))


def expected(model="auto", **more):
    return expected_of(CASE, {}, GEOMETRY, 90, model, **{"constants": default_constants()} | more)


def test_both_models_are_there_but_that_of_an_amd_gpus_roundings_decides_nothing(models):
    mine: Any = object()
    for constants in (default_constants(), mine):
        found = expected(constants=constants)
        assert found.prediction is models["prediction"] and found.model is MODEL and found.missing == ""
        assert models["constants"] is constants and models["wanted"] is None
    found = expected_of(CASE, {}, GEOMETRY, CDNA3, "always", constants=default_constants())
    assert found.prediction is models["prediction"] and found.model is None
    assert found.missing == "the rounding model does not decide on an AMD GPU, whose arithmetic is partly assumed"


@pytest.mark.parametrize(
    ("change", "how", "missing"),
    [
        ({"prediction": None}, {}, "there is no error model for this kernel"),
        ({}, {"model": "never"}, "the rounding model was skipped"),
        ({}, {"constants": None}, "the rounding model lacks the configurations of this source's kernels"),
        ({"model": None}, {}, "there is no rounding model for this kernel"),
    ],
)
def test_what_is_missing_is_named(models, change, how, missing):
    models.update(change)
    found = expected(**how)
    assert found.missing.startswith(missing) and found.model is None
    assert (found.prediction is None) == ("prediction" in change)


def test_of_some_rows_the_model_computes_and_gives_these(models):
    rows = np.array([(0, 1, 1), (0, 5, 0)])
    found = expected(rows=rows)
    assert np.argwhere(models["wanted"]).tolist() == [[0, 1, 1], [0, 5, 0]]
    assert (found.model == np.stack([MODEL[0, 1, 1], MODEL[0, 5, 0]])[None, :, None]).all()
    assert found.prediction is not None and found.prediction.bound.shape == found.model.shape
    models["model"] = None
    assert expected(rows=rows).model is None


GIB = 1 << 30


def case(flop=1.0, nbytes=(1,), recorded=False, period=None, dst=(1, 1, 1, 1), **more):
    names = dict(zip(("n_seq", "n_q", "n_head", "hsv"), dst, strict=True))
    roots = {
        str(at): SimpleNamespace(nbytes=size, period=period if at == 0 else None) for at, size in enumerate(nbytes)
    }
    op = SimpleNamespace(sizes=SimpleNamespace(flop=flop, **names), roots=roots, **more)
    return SimpleNamespace(recorded=recorded, op=op)


@pytest.mark.parametrize(
    ("made", "auto", "every", "some"),
    [
        (case(), False, False, True),
        (case(flop=1e12), False, False, True),
        (case(flop=1.01e12), True, False, True),
        (case(nbytes=(4 * GIB,)), False, False, True),
        (case(nbytes=(4 * GIB, 1)), True, False, True),
        (case(flop=1e15, recorded=True), False, False, False),
    ],
)
def test_a_large_case_is_sampled_unless_it_is_recorded(made, auto, every, some):
    assert [Checks(sample=sample).samples(made) for sample in ("auto", "all", 5)] == [auto, every, some]
    assert [Checks(sample=sample).number_of_rows for sample in ("auto", "all", 5)] == [None, None, 5]


def test_an_operand_that_repeats_or_an_output_beyond_a_gibibyte_is_huge():
    quarter = GIB // 4  # floats
    for dst, huge in (((1, 1, 1, quarter), False), ((1, 1, 1, quarter + 1), True), ((2, 4, 8, quarter // 32), True)):
        assert is_huge(case(dst=dst)) == huge
    assert not is_huge(case(dst=(2, 4, 8, quarter // 64)))
    assert is_huge(case(nbytes=(1, 1), period=1))


def test_what_may_take_a_minute_may_be_run_in_part():
    slow = 60 * 0.4e9
    for made, may in ((case(flop=slow), False), (case(flop=1.01 * slow), True), (case(period=1), True)):
        assert Checks().may_take_part(made) == may == Checks(sample=7).may_take_part(made)
        assert not Checks(sample="all").may_take_part(made)
    assert not Checks().may_take_part(case(flop=1e15, recorded=True))
    assert limits.MOST_SECONDS == 60 and limits.RATES == {"mma_f16": 2.8e9, "tile": 0.4e9, "vec": 0.4e9}


@pytest.mark.parametrize(
    ("engine", "family", "flop", "partly"),
    [
        ("sim", "vec", 60 * 0.4e9, False),
        ("sim", "vec", 60 * 0.41e9, True),
        ("sim", "mma_f16", 60 * 0.41e9, False),
        ("sim", "mma_f16", 60 * 2.81e9, True),
        ("cuda", "vec", 1e15, False),
    ],
)
def test_a_simulated_gpu_runs_some_blocks_of_what_takes_a_minute(monkeypatch, engine, family, flop, partly):
    target: Any = SimpleNamespace(engine=engine)
    geometry: Any = SimpleNamespace(kernel=SimpleNamespace(family=SimpleNamespace(name=family)))
    chosen_tiles = Mock()
    monkeypatch.setattr(limits, "flop_of", lambda geometry: flop)
    monkeypatch.setattr(limits, "chosen_tiles", chosen_tiles)
    monkeypatch.setattr(limits, "select", lambda *given: SimpleNamespace(complete=None))
    monkeypatch.setattr(limits, "rows_of_tiles", lambda *given: np.zeros((1, 3)))
    found = Checks().part(case(), geometry, [], target)
    assert (found is not None) == partly
    assert chosen_tiles.mock_calls == [call(geometry, 20 * limits.RATES[family], 24)] * partly
    assert Checks().part(case(period=1), geometry, [], target) is not None


def test_checks_in_words():
    assert str(Checks()) == "rounding model auto, rows auto, 1 run" and Checks().repeat == 1
    every = Checks("always", 9, 2, 4, roundings=True, kernels=True, order=3)
    assert str(every) == (
        "rounding model always, rows 9, 2 runs must have equal bits, 4 queries also alone, roundings as in the model, "
        "kernels as known, 3 orders of all cases in one process"
    )
    assert [sample_of(text) for text in ("auto", "all", "1", "20")] == ["auto", "all", 1, 20]
    for text in ("0", "-1", "x"):
        with pytest.raises(InputError):
            sample_of(text)


@pytest.mark.parametrize(
    ("flop", "model", "uses"),
    [(MODEL_FLOP, "auto", True), (1.01 * MODEL_FLOP, "auto", False), (1e15, "always", True), (1.0, "never", False)],
)
def test_the_rounding_model_is_computed_up_to_4_gflop(flop, model, uses):
    kernel: Any = SimpleNamespace(family=VEC)
    assert uses_model(case(flop=flop), kernel, model) == uses
    assert MODEL_FLOP == 4e9


def test_of_some_rows_the_model_computes_these_alone_where_it_can():
    made, rows = case(flop=8e9, dst=(2, 5, 3, 64)), np.zeros((15, 3), np.int64)
    kernels: list[Any] = [SimpleNamespace(family=family) for family in (MMA_F16, VEC)]
    mma, vec = kernels
    assert uses_model(made, mma, "auto", rows)  # half of 30
    assert not uses_model(made, mma, "auto", np.zeros((16, 3), np.int64))
    assert not uses_model(case(flop=1.0, nbytes=(1, 1), period=1), mma, "auto")
    assert not uses_model(made, vec, "auto", rows)


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
