"""The backward pass by recomputation, against finite differences and against the standard backward."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from fattn_probe.cases.op import Params
from fattn_probe.lab.study import formulas
from fattn_probe.lab.study.algorithms import run
from fattn_probe.lab.study.backward import backward, standard_backward
from fattn_probe.lab.study.formulas import FormulaSizes
from fattn_probe.lab.study.papers import flash_attention_2
from tests.lab.study.drawn_ops import made_op, subject_of, subjects


def gradients(head, dO, B_r=3, B_c=4):
    return backward(head, flash_attention_2(head, B_r, B_c), dO, B_r, B_c)


@given(subjects())
@settings(max_examples=100)
def test_recomputed_gradients_are_those_of_the_standard_backward(subject):
    head = subject.tensors
    dO = np.random.default_rng(1).normal(size=(head.n_q, head.hsv))
    found = backward(head, run("fa2", subject), dO, subject.tiling.B_r, subject.tiling.B_c)
    for one, other in zip((found.dQ, found.dK, found.dV), standard_backward(head, dO), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12 * max(1.0, np.abs(other).max()))


@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("mask", ["none", "causal", "random"])
@pytest.mark.parametrize("sinks", [False, True])
def test_gradients_are_finite_differences(softcap, mask, sinks):
    op = made_op(7, n_q=4, n_kv=9, hsk=3, hsv=5, mask=mask, params=Params(0.7, 0.0, softcap), sinks=sinks)
    head = subject_of(op).tensors
    dO = np.random.default_rng(2).normal(size=(head.n_q, head.hsv))
    found = gradients(head, dO)
    for name, gradient in (("Q", found.dQ), ("K", found.dK), ("V", found.dV)):
        np.testing.assert_allclose(gradient, by_differences(head, name, dO), rtol=1e-6, atol=1e-8, err_msg=name)


def by_differences(head, name, dO, step=1e-5):
    """d(sum of dO * O) / d(array), one element after the other, central differences."""
    array = getattr(head, name)
    found = np.empty(array.shape)
    for index in np.ndindex(array.shape):
        losses = []
        for sign in (1, -1):
            moved = array.copy()
            moved[index] += sign * step
            losses.append((dO * flash_attention_2(replace(head, **{name: moved}), 4, 4).out).sum())
        found[index] = (losses[0] - losses[1]) / (2 * step)
    return found


@given(subjects())
@settings(max_examples=50)
def test_counted_traffic_is_the_closed_form(subject):
    head, tiling = subject.tensors, subject.tiling
    found = backward(head, run("fa2", subject), np.ones((head.n_q, head.hsv)), tiling.B_r, tiling.B_c)
    expected = formulas.backward(FormulaSizes.of(head), tiling.B_c)
    assert sum(found.reads.values()) == expected.total_reads
    assert sum(found.writes.values()) == expected.total_writes


def test_a_fully_masked_row_has_zero_gradients():
    head = subject_of(made_op(0, mask="all")).tensors
    found = gradients(head, np.ones((head.n_q, head.hsv)))
    assert not found.dQ.any()
    assert not found.dK.any()
    assert not found.dV.any()
