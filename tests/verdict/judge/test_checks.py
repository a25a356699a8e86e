"""Which cases are checked by a sample of rows, and which are run in part."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.llama.launch.families import MMA_F16, VEC
from fattn_probe.verdict.judge import checks as limits
from fattn_probe.verdict.judge.bitwise import Alone, batch_invariance, chosen_queries, mask_pad, repeated
from fattn_probe.verdict.judge.checks import Checks, is_huge, sample_of
from fattn_probe.verdict.judge.expectation import MODEL_FLOP, uses_model

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
    asked = []
    monkeypatch.setattr(limits, "flop_of", lambda geometry: flop)
    monkeypatch.setattr(limits, "chosen_tiles", lambda geometry, most, tiles: asked.append((most, tiles)))
    monkeypatch.setattr(limits, "select", lambda *given: SimpleNamespace(complete=None))
    monkeypatch.setattr(limits, "rows_of_tiles", lambda *given: np.zeros((1, 3)))
    found = Checks().part(case(), geometry, [], target)
    assert (found is not None) == partly
    assert asked == [(20 * limits.RATES[family], 24)] * partly
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


def test_of_several_runs_the_first_other_one_is_described():
    first = np.zeros((1, 3, 2, 4), np.float32)
    one, two = first.copy(), first.copy()
    one[0, 1, 0, 1:3], two[0, :2, 1] = 1, 1
    assert (
        "1 of 2 runs gave different bits from the first: run 2 in 2 elements of 1 rows"
        in repeated(first, [one], "").reason
    )
    found = repeated(first, [first, two, one, first], "")
    assert "2 of 5 runs gave different bits from the first: run 3 in 8 elements of 2 rows" in found.reason


def test_the_worst_of_the_queries_alone_is_named():
    rows = [Alone(query, "vec", query == 0, query * 1e-7) for query in range(8)]
    found = batch_invariance(rows, "mma")
    assert found.reason.startswith("7 of 8 queries have other bits alone (1, 2, 3, 4, 5, 6), NMSE up to 7.0e-07")
    assert not batch_invariance([], "mma").made
    assert chosen_queries(10, 1) == [0] and chosen_queries(1000, 3) == [0, 500, 999]


@pytest.mark.parametrize(("rows", "pad"), [(5, 1), (6, 1), (64, 64), (128, 64), (65, 1)])
def test_a_recorded_mask_is_padded_if_it_looks_like_it(rows, pad):
    made = case(recorded=True, dst=(1, 5, 1, 1), tensors={"mask": SimpleNamespace(ne=(64, rows, 1, 1))})
    assert mask_pad(made) == pad
    made = case(recorded=True, dst=(1, 64, 1, 1), tensors={"mask": SimpleNamespace(ne=(64, 64, 1, 1))})
    assert mask_pad(made) == 1


def test_a_check_passes_fails_or_neither():
    first = np.zeros((1, 3, 2, 4), np.float32)
    same, other = repeated(first, [first], ""), repeated(first, [first + 1], "")
    assert [(check.passes, check.fails, check.made) for check in (same, other)] == [
        (True, False, True),
        (False, True, True),
    ]
    equal, unlike = Alone(0, "vec", True, 0.0), Alone(1, "vec", False, 1e-9)
    alone = [batch_invariance(rows, "mma") for rows in ([equal], [equal, unlike], [])]
    said = [(check.passes, check.fails, check.made) for check in alone]
    assert said == [(True, False, True), (False, False, True), (False, False, False)]
