"""The signals that end a command: Ctrl-C, SIGTERM, and SIGHUP, which a terminal sends when it closes."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

NAMES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "terminated: the terminal is gone"}
TERMINATION = (signal.SIGTERM, signal.SIGHUP)
ENDINGS = (signal.SIGINT, *TERMINATION)


class Terminated(KeyboardInterrupt):
    """The interrupt raised for SIGTERM and SIGHUP.

    After a plain KeyboardInterrupt inside `exec`, such as in an import that defines a dataclass, Python ignores the
    exit code and kills itself with SIGINT (python/cpython: `unhandled_keyboard_interrupt`). A subclass avoids this.
    """


@dataclass
class Stop:
    """The handler of SIGTERM and SIGHUP; `received` is the first signal that arrived."""

    received: signal.Signals | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Raise Terminated; worker processes end with their parent."""
        self.received = self.received or signal.Signals(number)
        raise Terminated


def heed() -> None:
    """Let SIGTERM and SIGHUP stop this process like Ctrl-C, unless its caller, such as nohup, ignores them."""
    stop = Stop()
    for number in TERMINATION:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, stop)


def end_at_once() -> None:
    """Let Ctrl-C end this process at once, with a one-line message, until `interruptible` is called.

    Imports need no clean-up, and a KeyboardInterrupt during one is lost if compiled code or a callback catches it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise a caller, such as a shell, ignores it
        signal.signal(signal.SIGINT, _end)


def interruptible() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    try:
        os.write(2, f"{NAMES[signal.SIGINT]}\n".encode())
    finally:
        os._exit(128 + number)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """During the block, delay the signals that stop a command, for work that must not be left half done."""
    arrived: list[int] = []
    before = {}
    try:
        for number in ENDINGS if threading.current_thread() is threading.main_thread() else ():
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, lambda number, frame: arrived.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])


def terminated() -> signal.Signals | None:
    """The SIGTERM or SIGHUP that this process has received; unlike Ctrl-C, it demands a prompt exit."""
    stops = [handler for handler in map(signal.getsignal, TERMINATION) if isinstance(handler, Stop)]
    return stops[0].received if stops else None
