"""One line on a terminal with a command's current step, its progress and the time left."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

from rich.console import Console
from rich.text import Text

from fattn_probe.base.console import SHOWN_AFTER, rewrite
from fattn_probe.base.figures import clock

TICK_SECONDS = 1.0
MINUTE = 60.0
Step = Callable[[str], None]
"""A callback that receives a description of the current step."""
Item = TypeVar("Item")


def quiet(step: str) -> None:
    """A `Step` that shows nothing."""


@dataclass
class Activity:
    """The progress line: appears SHOWN_AFTER seconds into the `with` block, and is then rewritten every second.

    If stderr is not a terminal, a permanent line is printed every minute. `step` sets the current step, and `count`
    records one finished case of `total`; `shows`, if given, returns the whole line.
    """

    console: Console
    total: int = 0
    words: str = ""
    done: int = 0
    shows: Callable[[], str] | None = None
    counted: Counter[str] = field(default_factory=Counter)
    began: float = field(default_factory=time.monotonic)
    _first: float = 0.0
    _other: bool = False
    _up: bool = False
    _ended: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Self:
        threading.Thread(target=self._tick, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._ended.set()
            self._clear()

    def begin(self) -> None:
        """Print the line at once if stderr is not a terminal, for a command that takes minutes."""
        if not self.console.is_terminal:
            self.console.print(self.words, soft_wrap=True)

    def step(self, words: str) -> None:
        """Set the current step; an empty string hides the line."""
        with self._lock:
            self.words, self._other = words, False  # a build that failed does not report its end
            if not words:
                self._clear()

    def count(self, status: str, done: int | None = None, total: int | None = None) -> None:
        """Count a finished case, number `done` of `total`; if `done` has not grown, a new target has started."""
        number = self.done + 1 if done is None else done
        if number <= self.done:
            self.counted, self.began = Counter(), time.monotonic()
        self._first = self._first if self.counted else time.monotonic()
        self.counted[status] += 1
        self.done, self.total = number, self.total if total is None else total

    def each(self, items: Iterable[Item], status: Callable[[Item], str]) -> Iterator[Item]:
        """Yield the items, counting each one as it arrives."""
        for item in items:
            self.count(status(item))
            yield item

    def beside(self, report: Callable[[Item], None], shows: Callable[[Item], bool]) -> Callable[[Item], None]:
        """Wrap a report that prints its own line, so that the progress line is hidden while `shows(item)` is true."""

        def both(item: Item) -> None:
            with self._lock:
                self._other = shows(item)
                if self._other:
                    self._clear()
                report(item)

        return both

    def note(self, words: str, style: str = "") -> None:
        """Print a permanent line above the progress line."""
        with self._lock:
            self._clear()
            self.console.print(words, style=style, soft_wrap=True)

    @property
    def line(self) -> str:
        """The text: `17 of 120 cases, 1 fail, 16 pass, 0:41, about 4:08 left: gqa on sim:h200: exact reference`."""
        if self.shows is not None:
            return self.shows()
        seconds = time.monotonic() - self.began
        if self.total <= 1:
            return f"{self.words}, {clock(seconds)}"
        found = [f"{number} {status}" for status, number in sorted(self.counted.items())]
        parts = [f"{self.done} of {self.total} cases", *found, clock(seconds)]
        # The rate since the first finished case: builds before it may have taken minutes.
        rated, left = self.counted.total() - 1, self.total - self.done
        if rated >= 1 and left >= 1:
            parts.append(f"about {clock((time.monotonic() - self._first) * left / rated)} left")
        return f"{', '.join(parts)}: {self.words}"

    def _tick(self) -> None:
        shown = time.monotonic()
        while not self._ended.wait(TICK_SECONDS):
            with self._lock:
                if self._other:
                    shown = time.monotonic()
                elif self.words and not self._ended.is_set():
                    shown = self._show(shown)

    def _show(self, shown: float) -> float:
        """Show the line if it is due; takes and returns the time at which a permanent line was last printed."""
        now = time.monotonic()
        if self.console.is_terminal and (self._up or now - self.began >= SHOWN_AFTER):
            rewrite(self.console, Text(self.line))
            self._up = True
        elif not self.console.is_terminal and now - shown >= MINUTE:
            self.console.print(self.line, soft_wrap=True)
            return now
        return shown

    def _clear(self) -> None:
        if self._up:
            rewrite(self.console, Text(""))
            self._up = False
