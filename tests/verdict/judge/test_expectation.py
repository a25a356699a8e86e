"""What is expected of a run, and what is missing: the error model, the rounding model, or the constants of a source.

And which cases are checked by a sample of rows or run in part; the first finding: a kernel as designed, but 2 % off.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.launch.architecture import CDNA3
from fattn_probe.llama.launch.constants import default_constants
from fattn_probe.llama.launch.families import MMA_F16, VEC
from fattn_probe.llama.launch.geometry import geometry_of
from fattn_probe.llama.source import DEFAULT_SOURCE
from fattn_probe.machine.run.capture import Capture
from fattn_probe.verdict.judge import checks as limits
from fattn_probe.verdict.judge import expectation
from fattn_probe.verdict.judge.cases import judge_cases
from fattn_probe.verdict.judge.checks import Checks, is_huge, sample_of
from fattn_probe.verdict.judge.expectation import MODEL_FLOP, bit_exact, expected_of, uses_model
from fattn_probe.verdict.measure.verdict import Status, judge, upstream_says
from fattn_probe.verdict.truth.reference.adapter import reference_of
from tests.made import CAUSAL, case_of, launch_of, shape
from tests.stand_in import StandIn
from tests.verdict.made import predicted
from tests.verdict.truth.models import model_of

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
    assert found.missing == "on AMD GPUs the rounding model does not decide, because their arithmetic is partly assumed"


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
    assert (Checks().part(case(), geometry, [], target) is not None) == partly
    assert chosen_tiles.mock_calls == [call(geometry, 20 * limits.RATES[family], 24)] * partly
    assert Checks().part(case(period=1), geometry, [], target) is not None


def test_checks_in_words():
    assert str(Checks()) == "rounding model auto, rows auto, 1 run" and Checks().repeat == 1
    assert str(Checks("always", 9, 2, 4, roundings=True, kernels=True, order=3)) == (
        "rounding model always, rows 9, 2 runs must have equal bits, 4 queries also alone, "
        "roundings as in the model, kernels as known, 3 orders of all cases in one process"
    )
    assert [sample_of(text) for text in ("auto", "all", "1", "20")] == ["auto", "all", 1, 20]
    for text in ("0", "-1", "some", "1.5"):
        with pytest.raises(InputError, match=r"--sample .*: a number of rows \(1 or more\), all or auto"):
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


V1 = "data: {V: {kind: uniform, mean: 1, scale: 0.1}}"
LAUNCH = launch_of("flash_attn_ext_f16<128, 128, 64, 1, false, false, false>")


@pytest.mark.parametrize(("n_kv", "percent"), [(1024, None), (16384, -2.2)])
def test_as_designed_and_yet_inaccurate(n_kv, percent):
    case = case_of(shape(128, 1, 1, 16, n_kv, CAUSAL, V1))
    inputs, geometry = make_inputs(case), geometry_of(case.op, [LAUNCH], 90)
    dst, reference = model_of(case, inputs, [LAUNCH], 90), reference_of(case.op, inputs)
    expected = expected_of(case, inputs, geometry, 90, "always", constants=default_constants())
    verdict = judge(dst, reference, case.tolerance, expected=expected)
    assert verdict.status is Status.PASS
    assert verdict.design.passes
    assert verdict.accuracy.passes == (percent is None)
    if percent is not None:
        assert verdict.metrics.bias * 100 == pytest.approx(percent, abs=0.5)
        assert "increments below half an ulp of the f16 accumulator are lost" in verdict.accuracy.reason
        assert "NMSE" in verdict.accuracy.reason
        assert upstream_says(dst, reference).passes == (verdict.metrics.nmse < 5e-4)


@dataclass
class H200(StandIn):
    """A session whose runs return the rounding model's output of an H200, or another output."""

    spoil: Any = None
    persistent_runner = staticmethod(nullcontext)

    def build_for(self, target):
        return SimpleNamespace(manifest=SimpleNamespace(build_number="11549", source=DEFAULT_SOURCE, patches=()))

    def capture(self, case, inputs, target, part=None):
        dst = model_of(case, dict(inputs), [TILE], 90)
        if self.spoil is not None:
            self.spoil(dst)
        return Capture(case.name, case.digest, case.op, inputs, dst, (TILE,), "gpu", (), "CUDA0", "NVIDIA H200", {})

    class options:
        tree = None
        build = None
        sanitize = ()


TILE = launch_of("flash_attn_ext_f16<128, 128, 16, 4, false, false, false>")
TARGET = parse_target("sim:h200", load_devices())


@pytest.mark.parametrize("sample", [pytest.param("all", marks=pytest.mark.night), 16])  # 16, as for any large case
@pytest.mark.parametrize(
    ("n_kv", "n_q", "percent", "status"),
    [
        pytest.param(65536, 6, -13, Status.PASS, marks=pytest.mark.slow),
        # The predicted error is half of the answer: an output of zeros is as far from it.
        pytest.param(131072, 6, -51, Status.UNJUDGED, marks=pytest.mark.night),
    ],
)
def test_a_kernel_with_stagnant_accumulators_is_as_designed_but_inaccurate(n_kv, n_q, percent, status, sample):
    case = case_of(shape(128, 4, 1, n_q, n_kv, CAUSAL, V1))
    options = Checks(model="never", sample=sample)
    steps: list[str] = []
    (row,) = judge_cases(H200(), [(case, [TARGET])], options, steps.append)
    assert [step.partition(": ")[2].partition(" for ")[0] for step in steps] == [
        "running",
        "computing the exact reference",
        "computing the error model and the rounding model",
    ]
    assert row.status is status
    assert row.verdict.design.passes and row.verdict.design.by == "prediction"
    assert row.verdict.metrics.bias * 100 == pytest.approx(percent, abs=6)
    assert row.verdict.design.predicted_mean_error * 100 == pytest.approx(percent, abs=6)
    assert not row.verdict.accuracy.passes
    assert "increments below half an ulp of the f16 accumulator are lost" in row.verdict.accuracy.reason
    (row,) = judge_cases(H200(lambda dst: dst.__setitem__((0, 1, 2), 0)), [(case, [TARGET])], options)
    assert row.status is Status.FAIL
    assert np.isfinite(row.verdict.metrics.nmse)
