"""Parallel work; no other code starts a command's processes and threads.

A worker is forked from a server that has imported what workers need, and runs tasks one after another. A parent
and its worker share one pipe and no lock, so neither waits for the rest of a message if the other dies. When the
parent exits for any reason, so does the worker, which also stops the programs that it has started.
"""

import functools
import math
import multiprocessing
import os
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from types import FrameType
from typing import Any, Generic, Self, TypeVar

from threadpoolctl import ThreadpoolController, threadpool_limits

from fattn_probe.base.errors import MachineError
from fattn_probe.base.files import scratch
from fattn_probe.base.host import SHARE, cores
from fattn_probe.base.process import describe_code, end_programs
from fattn_probe.base.signals import ENDINGS, TERMINATION, Terminated, deferred

Task = TypeVar("Task")
Answer = TypeVar("Answer")
Tell = Callable[[Any], None]
Begin = Callable[[Tell], AbstractContextManager[Callable[[Task], Answer]]]
"""Called in the worker to create its function, which can send messages to the parent while it runs."""
MOST_DEATHS = 2
"""The number of workers that a task may crash before it is abandoned."""
END_SECONDS = 5.0
"""Seconds until a stopping worker kills itself and its programs; after twice as long, the parent kills it."""
FEW = 3e7
CONTEXT = multiprocessing.get_context("forkserver")
LONGEST_TMPDIR = 107 - len("/pymp-12345678/listener-12345678")
"""The longest $TMPDIR that works: multiprocessing puts sockets there, and their paths have at most 107 characters."""


def simply(work: Callable[[Task], Answer], tell: Tell) -> AbstractContextManager[Callable[[Task], Answer]]:
    """Begin work that needs no preparation; a worker gets it as `partial(simply, work)`."""
    return nullcontext(work)


@dataclass(frozen=True)
class Died:
    """Stands in for the answer of a task that crashed several workers; `how` describes the end of the last one."""

    how: str


@dataclass(frozen=True)
class _Told:
    """A message from a worker while it works."""

    what: object


@dataclass(frozen=True)
class _Raised:
    """An exception that a task raised, with its traceback as text."""

    error: Exception
    trace: str


@dataclass
class _Worker(Generic[Task]):
    """A worker as its parent sees it: the task in progress, if any, and the number of workers that the task crashed."""

    process: BaseProcess
    connection: "Connection[Any, Any]"
    task: Task | None = None
    deaths: int = 0


@dataclass
class Workers(Generic[Task, Answer]):
    """Up to `number` processes, started when there is work for them, and stopped at the end of the `with` block.

    `told` receives the messages of workers. `threads` is the number of cores for each worker; if 0, the workers that
    can be busy at once share this process's cores equally. Workers keep their temporary files in a folder that is
    removed at the end, even if a worker is killed.
    """

    begin: Begin[Task, Answer]
    number: int
    told: Tell = lambda what: None
    threads: int = 0
    _workers: list[_Worker[Task]] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)
    _folder: str = ""

    def __enter__(self) -> Self:
        self._folder = str(self._stack.enter_context(scratch()))
        self._stack.callback(lambda: self._end(self._workers))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def answers(self, tasks: Iterable[Task | None]) -> Generator[tuple[Task, Answer | Died]]:
        """Yield each task with its answer, as soon as it is known; an exception in a task is raised here.

        A task is taken from the iterator when a worker is free, before the caller sees the answers that have arrived;
        None means that there is no task until the next answer. If a worker dies, a new one runs the task once more.
        Closing the iterator stops the tasks in progress.
        """
        with closing(self.rounds(tasks)) as rounds:
            for ready in rounds:
                yield from ready

    def rounds(
        self, tasks: Iterable[Task | None], news: "Connection[Any, Any] | None" = None
    ) -> Generator[list[tuple[Task, Answer | Died]]]:
        """Yield lists of the answers that have arrived.

        A message on `news` also ends the wait, because there may be new tasks; the list may then be empty.
        """
        source, over = iter(tasks), False
        most = min(self.number, max(1, len(tasks))) if isinstance(tasks, Sized) else self.number
        ready: list[tuple[Task, Answer | Died]] | None = None
        try:
            while True:
                while not over and sum(worker.task is not None for worker in self._workers) < most:
                    try:
                        task = next(source)
                    except StopIteration:
                        over = True
                        break
                    if task is None:
                        break
                    self._give(task, most)
                if ready is not None:
                    yield ready
                    ready = None
                    continue  # the caller may have more tasks by now
                busy = {worker.connection: worker for worker in self._workers if worker.task is not None}
                if not busy and (over or news is None):
                    return
                ready = []
                for connection in wait([*busy, *([news] if news is not None and not over else ())]):
                    if connection is news:
                        news.recv_bytes()
                    else:
                        ready += self._heard(busy[connection], most)  # type: ignore[index]
        finally:
            self._end([worker for worker in self._workers if worker.task is not None])

    def _give(self, task: Task, sharing: int, deaths: int = 0) -> None:
        worker = next((worker for worker in self._workers if worker.task is None), None)
        if worker is None:
            threads = self.threads or max(1, cores() // sharing)
            with deferred():
                ours, theirs = CONTEXT.Pipe()
                words = (theirs, self.begin, threads, {**os.environ, SHARE: str(threads)}, self._folder)
                prepare_workers()
                # If an exit skips our own clean-up, multiprocessing terminates daemons, but waits for other processes.
                process = CONTEXT.Process(target=_serve, args=words, daemon=True)
                process.start()
                theirs.close()
                worker = _Worker(process, ours)
                self._workers.append(worker)
        worker.task, worker.deaths = task, deaths
        with suppress(ConnectionError):  # the worker has died: `_heard` will read the end of its pipe
            worker.connection.send(task)

    def _heard(self, worker: _Worker[Task], sharing: int) -> Iterator[tuple[Task, Answer | Died]]:
        task, deaths = worker.task, worker.deaths + 1
        assert task is not None
        try:
            said = worker.connection.recv()
        except (EOFError, OSError):
            how = self._end([worker])
            if deaths < MOST_DEATHS:
                self._give(task, sharing, deaths)
            else:
                yield task, Died(f"it crashed {deaths} workers, the last one {how}")
            return
        if isinstance(said, _Told):
            self.told(said.what)
            return
        worker.task = None
        if isinstance(said, _Raised):
            raise said.error from RuntimeError(said.trace)
        yield task, said

    def _end(self, workers: Sequence[_Worker[Task]]) -> str:
        """Stop some workers and their programs; returns a description of how the last one ended."""
        ending, how = list(workers), ""
        for worker in ending:
            worker.connection.close()
        for worker in ending:
            worker.process.join(2 * END_SECONDS)
            worker.process.kill()
            worker.process.join()
            how = describe_code(worker.process.exitcode or 0)
            self._workers.remove(worker)
        return how


def prepare_workers(*modules: str) -> None:
    """Start the server that forks the workers, early enough to import the modules while this process continues.

    The server and its workers start with signals blocked: a terminal signals every process, but only the parent reacts.
    """
    if len(os.fsencode(tempfile.gettempdir())) > LONGEST_TMPDIR:
        raise MachineError(
            f"{tempfile.gettempdir()}: the path of the temporary folder is too long for a socket; "
            f"set TMPDIR to one of at most {LONGEST_TMPDIR} characters"
        )
    if modules:
        CONTEXT.set_forkserver_preload(list(modules))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    try:
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)  # starting the tracker unblocks them
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass
class _Leave:
    """The signal handler of a worker: the first signal interrupts its task; its clean-up is not interrupted."""

    free: bool = False
    signal: int = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        first, self.signal = not self.signal, self.signal or number
        if first and self.free:
            raise Terminated


def _serve(
    connection: "Connection[Any, Any]",
    begin: Begin[Any, Any],
    threads: int,
    environment: Mapping[str, str],
    folder: str,
) -> None:
    """The main loop of a worker: receive a task, send its answer, until the other end is closed."""
    leave = _Leave()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in TERMINATION:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, leave)
    read, write = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_end_in_time, args=(connection.fileno(), read), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
    multiprocessing.current_process().daemon = False  # a daemon could not start workers itself
    os.environ.clear()
    os.environ.update(environment)  # the server still has the environment that it was started with
    tempfile.tempdir = folder
    try:
        limit = threadpool_limits(min(threads, blas_threads()), "blas")
        with limit, begin(lambda what: connection.send(_Told(what))) as function:
            leave.free = True
            try:
                while not leave.signal:
                    connection.send_bytes(_reply(function, connection.recv()))
            except (EOFError, OSError):  # the parent has closed its end, perhaps in mid-message
                leave.free = False  # before the block exits, where Python 3.12 can lose a handler's exception
    except Terminated:
        sys.exit(128 + leave.signal)


def _reply(function: Callable[[Any], Any], task: object) -> bytes:
    """The answer to a task, or the exception that it raises, pickled for the pipe."""
    try:
        return bytes(ForkingPickler.dumps(function(task)))
    except Exception as error:  # noqa: BLE001 (the boundary of a process)
        trace = traceback.format_exc()
        try:
            said = ForkingPickler.dumps(_Raised(error, trace))
            ForkingPickler.loads(said)
        except Exception:  # noqa: BLE001 (pickling it can run any code)
            said = ForkingPickler.dumps(_Raised(RuntimeError(f"{type(error).__name__}: {error}"), trace))
        return bytes(said)


def _end_in_time(connection: int, signals: int) -> None:
    """Wait for the parent's exit or for a signal; then stop this worker, and later kill it and its programs."""
    waiting = select.poll()
    waiting.register(connection, 0)  # only to detect when it closes: the main thread reads from it
    waiting.register(signals, select.POLLIN)
    waiting.poll()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_SECONDS)
    end_programs()
    time.sleep(END_SECONDS / 10)
    end_programs(signal.SIGKILL)
    os._exit(1)


@contextmanager
def threads(number: int) -> Iterator[ThreadPoolExecutor]:
    """Threads for code that waits for programs; an interrupt kills these programs instead of waiting for them."""
    with ThreadPoolExecutor(number) as pool:
        try:
            yield pool
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, KeyboardInterrupt):
                end_programs()
            raise


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


def blas_threads() -> int:
    """The number of BLAS threads: all cores, or fewer if OPENBLAS_NUM_THREADS or a similar variable says so."""
    return min(cores(), max((library["num_threads"] for library in _blas().info()), default=1))


def spread(function: Callable[[Task], None], tasks: Sequence[Task], *, operations: float = math.inf) -> None:
    """Call a function on every task, in parallel threads with single-threaded BLAS, on all cores that BLAS may use.

    BLAS's own threads wait for each other after every matrix product, and run exp on one core only; on a busy machine
    the waits are up to 30 times as long (measured). Independent threads do not wait. Tasks start in order; the first
    exception is raised when all tasks have finished. For at most FEW `operations` in total, only the calling thread
    is used, because starting threads takes 0.1 ms.
    """
    workers = min(blas_threads(), len(tasks)) if operations > FEW else 1
    with _blas().limit(limits=1):
        if workers <= 1:
            for task in tasks:
                function(task)
            return
        with ThreadPoolExecutor(workers) as pool:
            for _ in pool.map(function, tasks):
                pass
