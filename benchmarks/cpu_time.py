"""CPU time of the programs that a benchmark runs: on a busy machine it grows less than the time by the clock."""

import os


def cpu_seconds_of_children() -> float:
    """The CPU time, in user and system mode, of all ended child processes and theirs."""
    times = os.times()
    return times.children_user + times.children_system
