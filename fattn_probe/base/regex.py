"""Regular expressions from the user: errors name the flag or key, and searches have a time limit."""

import contextlib
import re
import signal
import threading
from collections.abc import Iterator

from fattn_probe.base.errors import InputError

SEARCH_SECONDS = 1.0
"""Limit on the CPU time for a search of all names, in seconds."""


def compiled(pattern: str, given: str) -> re.Pattern[str]:
    """Compile a pattern; InputError with its flag or key (`given`) if it is not a valid regular expression."""
    if problem := problem_of(pattern):
        raise InputError(f"{given} {pattern!r}: {problem}")
    return re.compile(pattern)


def problem_of(pattern: str) -> str:
    """The reason why a string is not a valid regular expression; empty if it is one."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return ""


@contextlib.contextmanager
def bounded(pattern: str, given: str) -> Iterator[None]:
    """Stop a search that backtracks for too long, with an InputError; `re` checks for signals while it searches."""

    def stop(number: int, frame: object) -> None:
        raise InputError(f"{given} {pattern!r} takes too long on these lines: it backtracks, as (a+)+ does")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SEARCH_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)
