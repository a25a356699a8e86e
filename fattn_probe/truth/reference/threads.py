"""Work on as many cores as BLAS uses, each with a BLAS of one thread.

Two BLAS threads wait for each other after every matrix product, while exp runs on one core; and on a busy machine they
wait for long (30 times as long was measured). Workers that share nothing do neither.
"""

import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from threadpoolctl import ThreadpoolController

Task = TypeVar("Task")
FEW = 3e7


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


def blas_threads() -> int:
    """How many threads BLAS has: the machine's cores, or what OPENBLAS_NUM_THREADS and the like say."""
    return max((library["num_threads"] for library in _blas().info()), default=1)


def spread(function: Callable[[Task], None], tasks: Sequence[Task], *, operations: float = math.inf) -> None:
    """Call a function on every task, in order of start; the first exception is raised when all have ended.

    On this thread alone where there are few `operations` in all: threads take 0.1 ms to start.
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
