"""CPU time of the programs that a benchmark runs; on a busy machine it grows less than the wall time."""

import os


def cpu_seconds_of_children() -> float:
    """The CPU time, in user and system mode, of all child processes that have ended, and of their children."""
    times = os.times()
    return times.children_user + times.children_system
