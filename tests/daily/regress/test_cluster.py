"""Cases on a dask cluster of several worker processes, some of which die."""

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from fattn_probe.base.errors import BuildError, InputError, LostError
from fattn_probe.cases.device import Target
from fattn_probe.daily.regress import cluster as clusters
from fattn_probe.daily.regress.cluster import Cluster, own_gpu
from fattn_probe.daily.regress.pool import Job
from fattn_probe.daily.regress.records import Result
from fattn_probe.machine.run.session import RunOptions
from tests.made import H200
from tests.stand_in import StandIn

distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed (pip install distributed)")
cloudpickle = pytest.importorskip("cloudpickle")
SIM = H200


@dataclass(frozen=True)
class Case(StandIn):
    name: str

    @property
    def op(self):
        return SimpleNamespace(sizes=SimpleNamespace(flop=1))

    @property
    def digest(self):
        return self.name


def judge(session, case, target):
    """A result with its process's number; a case named after a file kills its worker until the file exists."""
    if case.name == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    if case.name.startswith("/") and not Path(case.name).exists():
        Path(case.name).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if case.name == "raises":
        raise ValueError("of its own")
    time.sleep(0.02)
    return Result(case.name, case.digest, "pass", str(os.getpid()))


def who(session, target):
    return f"{target} of {os.getpid()}"


@pytest.fixture(scope="module")
def cluster():
    """Two worker processes, without a GPU."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, worker_dashboard_address=None
    ) as made:
        yield made


def job(target=SIM):
    return Job(judge, RunOptions(tree=None), {}, target)


def test_every_case_has_one_result_though_a_worker_is_killed_on_the_way(cluster, tmp_path):
    cases = [Case(f"case{number}") for number in range(30)]
    cases.insert(10, Case(str(tmp_path / "killed")))
    results = list(Cluster(cluster.scheduler_address).judged(job(), cases))
    assert sorted(result.name for result in results) == sorted(case.name for case in cases)
    assert {result.status for result in results} == {"pass"}
    assert (tmp_path / "killed").exists()
    assert len({result.reason for result in results}) >= 2  # several processes


def test_a_case_that_every_worker_dies_of_is_lost_and_the_others_are_not(cluster):
    results = {
        result.name: result
        for result in Cluster(cluster.scheduler_address).judged(job(), [Case("deadly"), Case("a"), Case("raises")])
    }
    assert results["deadly"].status == "lost"
    assert "KilledWorker" in results["deadly"].reason
    assert (results["raises"].status, results["raises"].reason) == ("lost", "ValueError: of its own")
    assert results["a"].status == "pass"


def test_a_worker_answers_questions_about_its_machine(cluster):
    said = Cluster(cluster.scheduler_address).ask(job(), who)
    assert said.startswith("sim:h200 of ")
    assert said != f"sim:h200 of {os.getpid()}"
    with pytest.raises(LostError, match="ZeroDivisionError"):
        Cluster(cluster.scheduler_address).ask(job(), lambda session, target: 1 / 0)


def test_each_machine_compiles_what_all_cases_need_before_the_first_runs(cluster, tmp_path, monkeypatch):
    def prepared(session, target, cases):
        (tmp_path / f"{len(cases)} cases {os.getpid()}").touch()
        raise BuildError("a kernel does not compile: the cases that need it will say so")

    monkeypatch.setattr(clusters, "_prepared", prepared)
    results = list(Cluster(cluster.scheduler_address).judged(job(), [Case("a"), Case("b")]))
    assert [result.status for result in results] == ["pass", "pass"]
    (one,) = tmp_path.iterdir()
    assert one.name.startswith("2 cases ")


def test_no_worker_has_a_gpu_or_there_is_no_scheduler(cluster):
    with pytest.raises(InputError, match="workers has a GPU"):
        list(Cluster(cluster.scheduler_address, 1.0).judged(job(Target("cuda")), [Case("a")]))
    with pytest.raises(InputError, match="no scheduler answers"):
        Cluster("tcp://127.0.0.1:9", 1.0).ask(job(), who)


def test_a_gpu_is_a_resource_that_one_case_has_at_a_time():
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=4, resources={"GPU": 1}, dashboard_address=None, worker_dashboard_address=None
    ) as made:
        begin = time.monotonic()
        results = list(Cluster(made.scheduler_address).judged(job(Target("cuda")), [Case(f"{n}") for n in range(12)]))
        assert len(results) == 12
        assert time.monotonic() - begin >= 12 * 0.02


def test_a_worker_uses_the_gpu_that_it_was_given():
    assert own_gpu(Target("cuda"), {"CUDA_VISIBLE_DEVICES": "3,4"}).gpu == 3
    assert own_gpu(Target("cuda", gpu=1), {}).gpu == 1
    assert own_gpu(SIM, {"CUDA_VISIBLE_DEVICES": "3"}) is SIM
