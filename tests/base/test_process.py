"""How a program that takes too long ends."""

import time

import pytest

from fattn_probe.base.errors import LostError, TimedOutError
from fattn_probe.base.process import run


def test_a_program_that_takes_too_long_is_killed():
    start = time.monotonic()
    with pytest.raises(TimedOutError, match=r"^timed out after 0\.3 s: sleep 60$"):
        run(["sleep", "60"], timeout=0.3)
    assert time.monotonic() - start < 30
    assert issubclass(TimedOutError, LostError), "exit 4"


def test_a_process_that_left_the_group_does_not_keep_its_caller():
    """It holds the pipes, and the end of the output was waited for until it ended."""
    start = time.monotonic()
    with pytest.raises(TimedOutError):
        run(["bash", "-c", "setsid sleep 30 & sleep 30"], timeout=0.3)
    assert time.monotonic() - start < 20
