"""What workers do in tests: functions that a server can import."""

import contextlib
import functools
import os
import signal
import time
from multiprocessing import connection
from pathlib import Path

from fattn_probe.base.errors import TimedOutError
from fattn_probe.base.files import scratch
from fattn_probe.base.host import cores
from fattn_probe.base.process import run


@contextlib.contextmanager
def programs(tell):
    """A worker that starts programs, which start others, and has files; a task is how many seconds a program takes."""
    with scratch():
        yield lambda seconds: run(["bash", "-c", f"sleep {seconds} & wait"]).code


@contextlib.contextmanager
def words(tell):
    """A worker that does what a word says, and answers with the word and its process."""

    def answer(task):
        word, _, rest = task.partition(":")
        if word == "raise":
            raise TimedOutError(rest, "two arguments")
        if word == "cannot be sent":
            raise Unsendable(1, 2)
        if word == "die" or (word == "die-once" and not Path(rest).exists()):
            Path(rest or os.devnull).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "sleep":
            time.sleep(float(rest))
        if word == "told":
            tell(rest)
        if word == "cores":
            return cores()
        if word == "environment":
            return os.environ.get(rest)
        return task, os.getpid()

    yield answer


class Unsendable(Exception):
    """An exception that cannot be unpickled."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


@contextlib.contextmanager
def stubborn(tell):
    """A worker that takes no notice of a signal, as one in a long call of a C library."""

    def answer(path):
        os.waitpid(os.spawnlp(os.P_NOWAIT, "true", "true"), 0)
        Path(path).touch()
        end = time.monotonic() + 600
        while time.monotonic() < end:
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(600)

    yield answer


@contextlib.contextmanager
def half(tell):
    """A worker that sends a half of its first answer, and then gets the signal that the task names."""

    def answer(task):
        number, _, path = task.partition(":")
        if not Path(path).exists():
            Path(path).touch()
            vars(connection)["Connection"]._send = functools.partialmethod(send_half, int(number))
        return b"x" * (1 << 16)

    yield answer


def send_half(pipe, number, data):
    os.write(pipe.fileno(), bytes(data)[: len(data) // 2])
    os.killpg(0, number) if number == signal.SIGHUP else os.kill(os.getpid(), number)
    time.sleep(600)
