"""The terminal: answers on stdout, progress and notes on stderr; the only module that writes to either.

Control characters are escaped in all text for a terminal, whatever its origin (a file, a program, a history).
"""

import codecs
import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import IO, Any, Literal, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.control import Control
from rich.segment import ControlType, Segment
from rich.text import Text

from fattn_probe.base.errors import FattnProbeError, MachineError

PIPE_WIDTH = 120
MOST_WIDTH = 10_000
"""The upper limit on $COLUMNS, because a table pads its lines to the full width."""
SHOWN_AFTER = 2.0
"""Delay before a live line appears, in seconds."""
ERASED = Control((ControlType.ERASE_IN_LINE, 2))
UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\ud800-\udfff\ufeff\ufff0-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Control and format characters, such as ESC and the marks that reverse a line, and lone surrogates."""
SUBSTITUTES: dict[int, int | str] = {
    **str.maketrans("─━│┃└╱⋮·█▓▒░→↑▾²µ", "--||`/:.@#*.>^v2u"),
    **str.maketrans("▁▂▃▄▅▆▇", "_.:-=+%"),
    **{ord(sign): words for sign, words in {"≥": ">=", "≤": "<=", "≠": "!=", "±": "+-", "…": "..."}.items()},
}
"""Replacements for characters that a terminal's encoding lacks."""
ENCODING_ERRORS = "fattn-probe"


def readable(text: str) -> str:
    r"""The text, made safe for a terminal: ESC becomes `\x1b`, and a right-to-left override `\u202e`."""
    return UNPRINTABLE.sub(lambda found: escape(found[0]), text)


def escape(character: str) -> str:
    """The character as a Python escape sequence."""
    return character.encode("unicode_escape", "surrogatepass").decode()


def readable_text(text: Text) -> Text:
    """A styled text, made safe for a terminal as `readable` does."""
    if UNPRINTABLE.search(text.plain) is None:
        return text
    found, end = text.blank_copy(), 0
    for match in UNPRINTABLE.finditer(text.plain):
        found.append_text(text[end : match.start()]).append(escape(match[0]))
        end = match.end()
    return found.append_text(text[end:])


def substitute(error: UnicodeError) -> tuple[str, int]:
    """Codec error handler: the replacement for characters that the encoding lacks, and the position after them."""
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end].translate(SUBSTITUTES)
    return lacking.encode("ascii", "backslashreplace").decode(), error.end


class Stream:
    """stdout or stderr, looked up at each use.

    A failed write raises MachineError on stdout, and is ignored on stderr, because a note must not stop a command.
    """

    def __init__(self, name: Literal["stdout", "stderr"]) -> None:
        self.name = name

    @property
    def stream(self) -> TextIO | None:
        """The stream itself, not rich's replacement during a progress bar; None if the caller has closed it."""
        found: TextIO | None = getattr(sys, self.name)
        return cast("TextIO | None", getattr(found, "rich_proxied_file", found))

    def write(self, text: str) -> int:
        """Write some text."""
        self._guarded(lambda stream: stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Write the buffered text; a full disk causes an error only here."""
        self._guarded(lambda stream: stream.flush())

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self.stream is not None and self.stream.isatty()

    @property
    def encoding(self) -> str:
        """The stream's character encoding."""
        return getattr(self.stream, "encoding", "") or "utf-8"

    def _guarded(self, write: Callable[[TextIO], object]) -> None:
        try:
            if self.stream is not None:
                write(self.stream)
        except BrokenPipeError:
            self.discard()
            if self.name == "stdout":
                raise BrokenPipeError from None  # with an errno, typer would exit with 1, our code for a bug
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            self.discard()
            if self.name == "stdout":
                why = getattr(error, "strerror", None) or error
                raise MachineError(f"{self.name}: cannot be written: {why}") from error

    def discard(self) -> None:
        """Send all further output to /dev/null: otherwise Python flushes its buffer at exit, and fails again."""
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a stream without a descriptor
            assert self.stream is not None
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())


class Terminal(Console):
    """A console for text of any origin: markup, emoji names and control characters have no effect."""

    answered = False
    """Whether this command has already printed its JSON document."""

    def __init__(self, file: IO[str], width: int | None = None, *, plain: bool = False) -> None:
        dumb = plain or os.environ.get("TERM") in ("dumb", "unknown")
        super().__init__(
            file=file,
            width=width,
            color_system=None if dumb or os.environ.get("NO_COLOR") else "auto",
            force_terminal=False if dumb else None,
            markup=False,
            emoji=False,
            highlight=False,
            _environ=environment(),
        )

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of a renderable; text is made readable before its lines are broken."""
        return super().render(readable_text(renderable) if isinstance(renderable, Text) else renderable, options)

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401
        """The rich text of a string, made readable."""
        return super().render_str(readable(text), **options)

    def on_broken_pipe(self) -> None:
        """Leave the exit code to the command; rich would exit with 1, our code for a bug."""
        raise BrokenPipeError


def width_for(stream: TextIO | Stream) -> int | None:
    """The width for a stream: $COLUMNS if set, None for a terminal (rich measures it), otherwise 120."""
    if columns := environment().get("COLUMNS"):
        return min(int(columns), MOST_WIDTH)
    return None if stream.isatty() else PIPE_WIDTH


def environment() -> dict[str, str]:
    """The environment, without COLUMNS or LINES if their values are not positive numbers, which would crash rich."""
    sizes = {name: os.environ.get(name, "") for name in ("COLUMNS", "LINES")}
    odd = [name for name, value in sizes.items() if not re.fullmatch("0*[1-9][0-9]{0,8}", value)]
    return {name: value for name, value in os.environ.items() if name not in odd}


STDOUT, STDERR = Stream("stdout"), Stream("stderr")
OUT = Terminal(cast(TextIO, STDOUT), width_for(STDOUT))
NOTES = Terminal(cast(TextIO, STDERR), width_for(STDERR))


class Documents:
    """stdout for whole documents: made readable on a terminal, otherwise unchanged."""

    def write(self, text: str) -> int:
        """Write a part of the text."""
        return STDOUT.write(readable(text) if STDOUT.isatty() else text)


DOCUMENTS = Documents()


def open_streams() -> None:
    """Prepare stdin, stdout and stderr for any caller.

    A closed stream is replaced: stdin and stderr by /dev/null, stdout by a file that cannot be written to. Otherwise
    the next file opened would get its descriptor. Characters that the terminal's encoding lacks are substituted.
    """
    for number, (name, flags) in enumerate((("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, flags), True)  # gets the lowest free number
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115, PTH123
    codecs.register_error(ENCODING_ERRORS, substitute)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ENCODING_ERRORS)


def text_of(shown: RenderableType, width: int) -> str:
    """The renderable as plain text, without colours."""
    file = io.StringIO()
    Terminal(file, width, plain=True).print(shown)
    return file.getvalue()


def rewrite(console: Console, line: RenderableType, *, last: bool = False) -> None:
    """Rewrite the terminal's current line, cut to its width; with `last`, the line becomes permanent."""
    console.control(ERASED)
    console.print(line, end="\n" if last else "\r", no_wrap=True, overflow="ellipsis")


def show(value: object, rendered: Callable[[], RenderableType], as_json: bool) -> None:
    """Print one answer: JSON, or rich text."""
    if as_json:
        OUT.answered = True
        DOCUMENTS.write(json.dumps(value, indent=1, default=str) + "\n")
    else:
        OUT.print(rendered())


def show_error(error: FattnProbeError, as_json: bool) -> None:
    """Print the error that stopped a command: on stderr and, with --json, on stdout unless a document was printed."""
    NOTES.print(str(error), style="red", soft_wrap=True)
    if as_json and not OUT.answered:
        found = {"kind": type(error).__name__, "exit_code": error.exit_code, "message": str(error)}
        show({"error": found}, str, as_json)
