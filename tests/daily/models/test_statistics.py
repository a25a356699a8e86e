"""Statistics of recorded ops: against a plain computation of small ops, and what the page says of them."""

import json

import numpy as np
import pytest

from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.daily.models import statistics
from fattn_probe.daily.models.statistics import (
    FIRST_BIN,
    LAST_BIN,
    Range,
    bins_of,
    document,
    page,
    statistics_of,
    table,
)
from fattn_probe.verdict.truth.reference.adapter import operand_values
from tests.made import case_with


def op_of(**fields):
    case = case_with(**{"hsk": 64, "n_head": 4, "n_head_kv": 2, "n_q": 5, "n_kv": 256} | fields)
    return case.op, make_inputs(case)


def described(op, inputs):
    return {"layer-00-step-0000": statistics_of(op, inputs)}


def test_bins_are_by_powers_of_two_and_a_range_leaves_out_what_is_not_finite():
    counted = bins_of(np.array([0.0, 2.0**-26, 2.0**-25, 1.0, -1.5, 2.0, 65504.0, 65536.0, 1e9]))
    assert {place + FIRST_BIN: count for place, count in enumerate(counted) if count} == {
        FIRST_BIN: 3,
        0: 2,
        1: 1,
        15: 1,
        LAST_BIN: 2,
    }
    found = Range.of(np.array([-3.0, 1.0, np.nan, np.inf]))
    assert (found.count, found.least, found.greatest, found.mean, found.std) == (2, -3.0, 1.0, -1.0, 2.0)
    assert Range.of(np.array([np.nan])).count == 0


@pytest.mark.parametrize("fields", [{}, {"mask": {"kind": "causal"}}, {"sinks": True}, {"logit_softcap": 5.0}])
def test_a_head_has_the_numbers_of_a_plain_computation(fields):
    op, inputs = op_of(**fields)
    values = operand_values(op, inputs)
    for head in statistics_of(op, inputs).heads:
        Q, K, V = (
            np.asarray(values[name][0, place, : op.sizes.n_kv], np.float64)
            for name, place in (("Q", head.head), ("K", head.head // 2), ("V", head.head // 2))
        )
        logits = Q @ K.T * op.params.scale
        if op.params.logit_softcap:
            logits = 5.0 * np.tanh(logits / 5.0)
        if op.has_mask:
            logits = logits + np.asarray(values["mask"])[0, 0, :5].astype(np.float64)
        sink = float(np.asarray(values["sinks"]).reshape(-1)[head.head]) if op.has_sinks else -np.inf
        most = np.maximum(logits.max(axis=1), sink)[:, None]
        P = np.exp(logits - most)
        assert head.logits.greatest == pytest.approx(logits.max())
        assert head.logits.least == pytest.approx(logits[np.isfinite(logits)].min())
        assert head.row_sums.greatest == pytest.approx((P.sum(axis=1) + np.exp(sink - most[:, 0])).max())
        assert head.largest_sum == pytest.approx((P @ np.abs(V)).max())
        positive = P[P > 0]
        assert head.zero == pytest.approx(np.mean(positive.astype(np.float16) == 0))
        assert head.subnormal + head.zero == pytest.approx(np.mean(positive < 2.0**-14))


@pytest.mark.parametrize("most", [1, 300, 1 << 22])
def test_the_queries_may_be_looked_at_in_parts(most, monkeypatch):
    op, inputs = op_of(n_q=7, mask={"kind": "causal"})
    whole = statistics_of(op, inputs)
    monkeypatch.setattr(statistics, "MOST", most)
    for a, b in zip(statistics_of(op, inputs).heads, whole.heads, strict=True):
        assert a.logits.bins == b.logits.bins and a.logits.std == pytest.approx(b.logits.std)
        assert a.logits.mean == pytest.approx(b.logits.mean) and a.row_sums.count == b.row_sums.count == 7
        assert (a.largest_sum, a.zero) == pytest.approx((b.largest_sum, b.zero))


def test_values_that_are_not_finite_have_statistics_too():
    op, inputs = op_of(type_K="f16")
    bad = {name: memory.copy() for name, memory in inputs.items()}
    bad[op.tensors["K"].root].view(np.float16)[:64] = np.nan
    bad[op.tensors["V"].root].view(np.float16)[64:128] = np.inf
    found = statistics_of(op, bad)
    assert found.heads[0].K.count == 255 * 64
    assert max(head.largest_sum for head in found.heads) == np.inf


def test_a_causal_mask_has_tiles_of_each_kind_and_a_query_that_sees_nothing_no_weights():
    found = statistics_of(*op_of(n_q=128, n_kv=128, mask={"kind": "causal"}))
    assert (found.hidden, found.partly, found.clean) == (0.25, 0.5, 0.25)
    assert statistics_of(*op_of()).clean == 1.0
    op, inputs = op_of(n_q=2, n_kv=4, mask={"kind": "causal"})
    memory = np.full(np.asarray(operand_values(op, inputs)["mask"]).shape, -np.inf, np.float16)
    found = statistics_of(op, {**inputs, op.tensors["mask"].root: memory.view(np.uint8).reshape(-1)})
    assert all(head.largest_sum == 0.0 and head.logits.count == 0 for head in found.heads)


def test_large_values_come_near_the_end_of_f16():
    op, inputs = op_of(data={"V": {"kind": "normal", "scale": 500.0}, "Q": {"kind": "normal", "scale": 0.01}})
    one = described(op, inputs)
    assert one["layer-00-step-0000"].nearest.largest_sum > 65504
    text = page(one, "A test.")
    assert text.count('class="near"') == 4 and "layer-00-step-0000" in text and "<script" not in text
    assert "%" in table(one).rows[0][3]


def test_the_document_has_each_head():
    (one,) = document(described(*op_of()))
    assert [head["head"] for head in one["heads"]] == [0, 1, 2, 3] and one["tiles"]["clean"] == 1.0
    assert sum(one["heads"][0]["Q"]["bins"]) == one["heads"][0]["Q"]["count"] == 5 * 64
    json.dumps(one)
