"""Work spread over threads, independent of OPENBLAS_NUM_THREADS."""

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from fattn_probe.op import Sizes
from fattn_probe.scenario import expand, loads
from fattn_probe.scenario.inputs import make_inputs
from fattn_probe.truth.reference import attention as module
from fattn_probe.truth.reference import threads
from fattn_probe.truth.reference.adapter import reference_of
from fattn_probe.truth.reference.attention import Blocking
from fattn_probe.truth.reference.sampled import choose_rows, sample

OP = "version: 1\nabout: x\nhsk: 32\nn_q: 70\nn_kv: 300\nn_head: 6\nn_head_kv: 3\nmask: {kind: causal}\n"


@pytest.fixture
def three_workers(monkeypatch):
    monkeypatch.setattr(threads, "blas_threads", lambda: 3)
    monkeypatch.setattr(module, "blas_threads", lambda: 3)
    monkeypatch.setattr(threads, "FEW", 0)


def test_every_task_is_done_once_by_several_threads(three_workers):
    done, meet = [], threading.Barrier(3, timeout=10)

    def work(task):
        meet.wait()
        done.append((task, threading.get_ident()))

    threads.spread(work, range(9))
    assert sorted(task for task, _ in done) == list(range(9))
    assert len({ident for _, ident in done}) == 3


def test_few_operations_stay_on_this_thread(three_workers, monkeypatch):
    monkeypatch.setattr(threads, "FEW", 100)
    done = []
    threads.spread(lambda _: done.append(threading.get_ident()), range(5), operations=100)
    assert done == [threading.get_ident()] * 5


def test_an_error_of_a_task_is_the_callers(three_workers):
    def work(task):
        if task == 4:
            raise ValueError("the fourth")

    with pytest.raises(ValueError, match="the fourth"):
        threads.spread(work, range(6))


def test_blas_has_one_thread_in_a_worker_and_its_own_number_after(three_workers):
    seen = []
    with threadpool_limits(2, user_api="blas"):
        before = threads._blas().info()
        threads.spread(lambda _: seen.append({blas["num_threads"] for blas in threads._blas().info()}), range(3))
        assert threads._blas().info() == before
    assert seen == [{1}] * 3


@pytest.mark.parametrize("type_", ["f16", "q4_0"])
def test_the_answer_does_not_hang_on_the_threads(three_workers, monkeypatch, type_):
    (case,) = expand(loads(f"{OP}type_K: {type_}\n"))
    inputs = make_inputs(case)
    several, rows = reference_of(case.op, inputs), choose_rows(case)
    sampled = sample(case, rows)
    monkeypatch.setattr(threads, "blas_threads", lambda: 1)
    np.testing.assert_array_equal(several, reference_of(case.op, inputs))
    np.testing.assert_array_equal(sampled.reference, sample(case, rows).reference)


def test_rows_are_cut_so_that_all_workers_have_some_and_few_sums_are_held():
    shape = Sizes(n_seq=1, n_head=2, n_head_kv=1, n_q=70, n_kv=300, hsk=32, hsv=32)
    runs = Blocking(rows=20, held=8192).tasks(shape, workers=2)
    assert [len(run) for run in runs] == [3, 3, 1]
    assert [len(run) for run in Blocking(rows=20, held=40).tasks(shape, workers=1)] == [2, 2, 2, 1]
    assert [rows for run in runs for rows in run] == [slice(q, q + 10) for q in range(0, 70, 10)]
