"""Work on as many cores as BLAS uses, each with a BLAS of one thread.

Two BLAS threads wait for each other after every matrix product, while exp runs on one core; on a busy machine they wait
up to 30 times as long (measured). Independent workers do not wait.
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
    """The number of BLAS threads: the machine's cores, or the value of OPENBLAS_NUM_THREADS and similar variables."""
    return max((library["num_threads"] for library in _blas().info()), default=1)


def spread(function: Callable[[Task], None], tasks: Sequence[Task], *, operations: float = math.inf) -> None:
    """Call a function on every task, started in order; the first exception is raised when all have ended.

    Uses only this thread if there are few `operations` in total, since starting threads takes 0.1 ms.
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
