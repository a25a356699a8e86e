"""Work spread over threads, independent of OPENBLAS_NUM_THREADS."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from fattn_probe.base import workers
from fattn_probe.cases.op import Sizes
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.verdict.truth.reference import attention as module
from fattn_probe.verdict.truth.reference.adapter import reference_of
from fattn_probe.verdict.truth.reference.attention import Blocking
from fattn_probe.verdict.truth.reference.sampled import choose_rows, sample
from fattn_probe.verdict.truth.rounding_model import tile
from fattn_probe.verdict.truth.rounding_model.operands import KernelOperands
from tests.made import CAUSAL, case_of, shape


@pytest.fixture
def three_workers(monkeypatch):
    monkeypatch.setattr(workers, "blas_threads", lambda: 3)
    monkeypatch.setattr(module, "blas_threads", lambda: 3)
    monkeypatch.setattr(workers, "FEW", 0)


def test_every_task_is_done_once_by_several_threads(three_workers):
    done, meet = [], threading.Barrier(3, timeout=60)

    def work(task):
        meet.wait()
        done.append((task, threading.get_ident()))

    workers.spread(work, range(9))
    assert sorted(task for task, _ in done) == list(range(9))
    assert len({ident for _, ident in done}) == 3


def test_there_are_no_more_threads_than_cores(monkeypatch):
    """BLAS counts the cores of the machine, of which a container may use two."""
    monkeypatch.setattr(workers, "cores", lambda: 1)
    with threadpool_limits(2, user_api="blas"):
        assert workers.blas_threads() == 1


@pytest.mark.parametrize("limit", [1, 2])
def test_rounding_models_start_no_more_threads_than_blas_has(monkeypatch, limit):
    """A pool's worker gives BLAS one thread, as other workers have the other cores."""
    monkeypatch.setattr(workers, "cores", lambda: 2)
    seen = set()

    def run(machine, *place):
        seen.add(threading.get_ident())
        time.sleep(0.05)
        return 0

    monkeypatch.setattr(tile.TileMachine, "run", run)
    zeros = np.zeros((1, 4, 8, 64), np.float32)
    operands = KernelOperands(zeros, zeros, zeros, None, None, zeros[0, :, 0, 0], np.float32(1), np.float32(0))
    plan: Any = SimpleNamespace(kernel=SimpleNamespace(DV=64))
    with threadpool_limits(limit, user_api="blas"):
        tile.tile(operands, plan)
    assert len(seen) == limit


def test_few_operations_stay_on_this_thread(three_workers, monkeypatch):
    monkeypatch.setattr(workers, "FEW", 100)
    done = []
    workers.spread(lambda _: done.append(threading.get_ident()), range(5), operations=100)
    assert done == [threading.get_ident()] * 5


def test_an_error_of_a_task_is_the_callers(three_workers):
    def work(task):
        if task == 4:
            raise ValueError("the fourth")

    with pytest.raises(ValueError, match="the fourth"):
        workers.spread(work, range(6))


def test_blas_has_one_thread_in_a_worker_and_its_own_number_after(three_workers):
    seen = []
    with threadpool_limits(2, user_api="blas"):
        before = workers._blas().info()
        workers.spread(lambda _: seen.append({blas["num_threads"] for blas in workers._blas().info()}), range(3))
        assert workers._blas().info() == before
    assert seen == [{1}] * 3


@pytest.mark.parametrize("type_", ["f16", "q4_0"])
def test_the_answer_does_not_hang_on_the_threads(three_workers, monkeypatch, type_):
    case = case_of(shape(32, 6, 3, 70, 300, CAUSAL, f"type_K: {type_}"))
    inputs = make_inputs(case)
    several, rows = reference_of(case.op, inputs), choose_rows(case)
    sampled = sample(case, rows)
    monkeypatch.setattr(workers, "blas_threads", lambda: 1)
    np.testing.assert_array_equal(several, reference_of(case.op, inputs))
    np.testing.assert_array_equal(sampled.reference, sample(case, rows).reference)


def test_rows_are_cut_so_that_all_workers_have_some_and_few_sums_are_held():
    shape = Sizes(n_seq=1, n_head=2, n_head_kv=1, n_q=70, n_kv=300, hsk=32, hsv=32)
    runs = Blocking(rows=20, held=8192).tasks(shape, workers=2)
    assert [len(run) for run in runs] == [3, 3, 1]
    assert [len(run) for run in Blocking(rows=20, held=40).tasks(shape, workers=1)] == [2, 2, 2, 1]
    assert [rows for run in runs for rows in run] == [slice(q, q + 10) for q in range(0, 70, 10)]
