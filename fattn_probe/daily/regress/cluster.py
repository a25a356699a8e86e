"""Run cases as tasks on a dask cluster; if a worker is lost, its cases run on other workers.

`dask worker ADDRESS --nworkers 1 --nthreads 1 --resources GPU=1` advertises the GPU in CUDA_VISIBLE_DEVICES. Cases
for a simulated GPU go to any worker. Each worker needs the same version of fattn-probe.
"""

import functools
import importlib
import os
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fattn_probe.base.errors import InputError, LostError
from fattn_probe.cases.device import Target
from fattn_probe.cases.device.target import picklable
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.regress.pool import Job, result_or_loss
from fattn_probe.daily.regress.records import Result
from fattn_probe.llama.source import resolve
from fattn_probe.machine.run.prepare import prepare
from fattn_probe.machine.run.session import Session

T = TypeVar("T")
CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class Cluster:
    """A cluster, given by its scheduler's address, such as `tcp://node1:8786`; waits `patience` seconds for it."""

    address: str
    patience: float = CONNECT_SECONDS

    def ask(self, job: Job, question: Callable[[Session, Target], T]) -> T:
        """Ask a worker that can run the job's cases; raises LostError if no answer comes."""
        with self._client(job) as client:
            future = client.submit(_answer, _packed(job), question, resources=_needs(job), pure=False)
            try:
                answer: T = future.result()
            except Exception as error:
                raise LostError(f"--dask {self.address}: {type(error).__name__}: {error}") from error
            return answer

    def judged(self, job: Job, cases: Sequence[Case]) -> Generator[Result]:
        """Yield the result of each case as soon as it is known; closing the iterator cancels the remaining cases.

        The scheduler moves the cases of a lost worker to other workers; a case that kills several workers is lost.
        """
        with self._client(job) as client:
            packed = _packed(job)
            # Compile the cases' kernels on one worker per machine; compile errors appear when a case runs.
            workers = client.scheduler_info(n_workers=-1)["workers"].items()
            machines = {worker.get("host", ""): address for address, worker in workers if _can(worker, _needs(job))}
            question, how = functools.partial(_prepared, cases=cases), {"resources": _needs(job), "pure": False}
            prepared = [
                client.submit(_answer, packed, question, workers=[address], allow_other_workers=True, **how)
                for address in machines.values()
            ]
            _dask().wait(prepared)
            futures = {
                client.submit(_judge, packed, case, **how): case
                for case in sorted(cases, key=lambda case: -case.op.sizes.flop)
            }
            try:
                for future in _dask().as_completed(futures):
                    if future.status == "finished":
                        yield future.result()
                        continue
                    said = future.status
                    if said == "error":
                        said = f"{type(future.exception()).__name__}: {future.exception()}"
                    yield Result.lost(futures[future], said)
            finally:
                client.cancel(list(futures))

    @contextmanager
    def _client(self, job: Job) -> Generator[Any]:
        """Connect to the cluster; raises InputError without a scheduler or a worker that can run the job's cases."""
        try:
            client = _dask().Client(self.address, timeout=self.patience)
        except (OSError, ValueError) as error:
            raise InputError(f"--dask {self.address}: no scheduler answers: {error}") from error
        with client:
            deadline = time.monotonic() + self.patience
            while True:  # a nanny may be restarting a worker
                workers = client.scheduler_info(n_workers=-1)["workers"].values()
                if any(_can(worker, _needs(job)) for worker in workers):
                    break
                if time.monotonic() > deadline:
                    gpu = f"none of its {len(workers)} workers has a GPU (dask worker ... --resources GPU=1)"
                    raise InputError(f"--dask {self.address}: {gpu if _needs(job) else 'it has no workers'}")
                time.sleep(0.1)
            yield client


def _dask() -> Any:  # noqa: ANN401 (it has no types)
    try:
        return importlib.import_module("distributed")
    except ImportError as error:
        raise InputError("--dask needs dask.distributed: pip install 'fattn-probe[dask]'") from error


def _needs(job: Job) -> dict[str, int] | None:
    return {"GPU": 1} if job.target.engine == "cuda" else None


def _can(worker: dict[str, Any], needs: dict[str, int] | None) -> bool:
    has = worker.get("resources", {})
    return all(has.get(name, 0) >= number for name, number in (needs or {}).items())


def _packed(job: Job) -> bytes:
    """Serialise a job without its builds, since each worker has its own; the bytes also identify cached sessions."""
    import cloudpickle

    packed: bytes = cloudpickle.dumps(replace(job, target=picklable(job.target), builds={}))
    return packed


def _judge(packed: bytes, case: Case) -> Result:
    """Run and judge one case (called in a worker)."""
    job, session = _session(packed, threading.get_ident())
    return result_or_loss(job, session, case)


def _prepared(session: Session, target: Target, cases: Sequence[Case]) -> None:
    """Build the kernels that the cases need, in one build (called in a worker)."""
    prepare(session, [(case, [target]) for case in cases])


def _answer(packed: bytes, question: Callable[[Session, Target], T]) -> T:
    job, session = _session(packed, threading.get_ident())
    return question(session, job.target)


@functools.lru_cache(maxsize=64)
def _session(packed: bytes, thread: int) -> tuple[Job, Session]:
    """The job's session in a worker, cached per thread, so that each build is located once."""
    import cloudpickle

    job: Job = cloudpickle.loads(packed)
    options, tree = job.options, job.options.tree
    if tree is not None and not tree.root.is_dir():  # this machine has the source elsewhere, or must fetch it
        options = replace(options, tree=resolve(tree.spec))
    return replace(job, options=options, target=own_gpu(job.target, os.environ)), Session(options)


def own_gpu(target: Target, environment: "os._Environ[str] | dict[str, str]") -> Target:
    """The target on the worker's GPU, the first one in CUDA_VISIBLE_DEVICES."""
    first = environment.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
    return replace(target, gpu=int(first)) if target.engine == "cuda" and first.isdigit() else target
