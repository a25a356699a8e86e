"""Kernels of other packages as contenders: what they are given, and what becomes of what they raise."""

import importlib.util

import numpy as np
import pytest

from fattn_probe.base.errors import ComparisonError, InputError, LostError
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.lab.kernels.contender import Question
from fattn_probe.lab.kernels.extras import Attended
from fattn_probe.lab.kernels.names import Package, arrays_of, contenders_of
from fattn_probe.verdict.measure.verdict import Status

from .test_contenders import case_of, rows


def exactly(asked, target, how):
    """float64, by heads: what a package would compute."""
    mask = None if asked.mask is None else asked.mask[None, None]
    if asked.causal:
        n_q, n_kv = asked.q.shape[2], asked.k.shape[2]
        hidden = np.arange(n_kv) > np.arange(n_q)[:, None] + n_kv - n_q
        mask = np.where(hidden, -np.inf, 0.0).astype(np.float16)[None, None]
    group = asked.q.shape[1] // asked.k.shape[1]
    k, v = (np.repeat(x.astype(np.float64), group, axis=1) for x in (asked.k, asked.v))
    logits = asked.q.astype(np.float64) @ k.transpose(0, 1, 3, 2) * asked.scale + (0 if mask is None else mask)
    weights = np.exp(logits - logits.max(axis=3, keepdims=True))
    return Attended(weights / weights.sum(axis=3, keepdims=True) @ v)


@pytest.mark.parametrize("mask", ["none", "causal", "random"])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
def test_the_arrays_say_what_the_case_says(mask, heads):
    case = case_of(n_head=heads[0], n_head_kv=heads[1], mask={"kind": mask}, n_seq=1)
    asked = arrays_of(Question(case, make_inputs(case)))
    assert asked.causal == (mask == "causal") and (asked.mask is not None) == (mask == "random")
    (row,) = rows([Package("exact", exactly)], case)
    assert row.judgement.status is Status.PASS and row.judgement.verdict.metrics.nmse < 1e-6


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InputError("not today"), Status.UNSUPPORTED),
        (ComparisonError("a race"), Status.FAIL),
        (LostError("gone"), Status.LOST),
    ],
)
def test_an_error_is_an_outcome(error, status):
    def raising(asked, target, how):
        raise error

    (row,) = rows([Package("none", raising)], case_of())
    assert row.judgement.status is status and str(error) in row.judgement.reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"type_K": "bf16", "type_V": "bf16"}, "both must be f16"),
        ({"n_seq": 2, "mask": {"kind": "causal"}}, "a mask for each sequence"),
        ({"logit_softcap": 5.0}, "no softcap"),
    ],
)
def test_what_arrays_cannot_say_is_refused(fields, reason):
    (row,) = rows([Package("exact", exactly)], case_of(**fields))
    assert row.judgement.status is Status.UNSUPPORTED and reason in row.judgement.reason


def test_torch_is_its_backends():
    assert [one.name for one in contenders_of(["torch:flash"])] == ["torch:flash"]
    assert {one.name for one in contenders_of(["torch"])} >= {"torch:math"}


@pytest.mark.build
@pytest.mark.slow
@pytest.mark.parametrize("name", ["triton", "tilelang", "torch"])
def test_a_package_that_is_there_passes(name):
    if importlib.util.find_spec(name) is None:  # importing Triton here would be too early: it decides then
        pytest.skip(f"{name} is not installed")
    found = rows(contenders_of([name]), case_of(n_q=20, n_kv=100, mask={"kind": "causal"}))
    assert all(row.judgement.status is Status.PASS for row in found), [row.judgement.reason for row in found]
