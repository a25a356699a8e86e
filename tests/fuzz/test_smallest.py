"""The processes that shrink failures."""

import threading
from typing import Any

from fattn_probe.fuzz import smallest


def test_no_thread_of_the_pool_outlives_the_shrinking(monkeypatch):
    """Such a thread closes the pool's pipe while Python, as it exits, writes to it: a traceback after right results."""
    failures: Any = [1e30] * 8  # `max`, which another process can be given, finds them larger than the time of the end
    monkeypatch.setattr(smallest, "sendable", lambda failure: failure)
    monkeypatch.setattr(smallest, "smallest", max)
    before = set(threading.enumerate())
    assert list(smallest.shrunk(failures, 2, 0)) == failures
    assert set(threading.enumerate()) == before
