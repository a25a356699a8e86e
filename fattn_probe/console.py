"""The terminal: answers on stdout, progress and notes on stderr."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from rich.console import Console, RenderableType
from rich.control import Control
from rich.segment import ControlType

from fattn_probe.errors import FattnProbeError
from fattn_probe.files import writing

STDOUT = Path("stdout")
PIPE_WIDTH = 120
SHOWN_AFTER = 2.0
"""Seconds after which a live line appears."""
ERASED = Control((ControlType.ERASE_IN_LINE, 2))


class Answers(Console):
    """stdout; `answered`: this command has already printed its JSON document."""

    answered = False

    def on_broken_pipe(self) -> None:
        """Leave the exit code to the command; rich would exit with 1, our code for a bug."""
        raise BrokenPipeError


def width_for(stream: TextIO) -> int | None:
    """The width to use for a stream: the terminal's, else $COLUMNS, else 120."""
    return None if stream.isatty() or os.environ.get("COLUMNS", "").isdigit() else PIPE_WIDTH


OUT = Answers(highlight=False, emoji=False, width=width_for(sys.stdout))
NOTES = Console(stderr=True, highlight=False, emoji=False, width=width_for(sys.stderr))


def rewrite(console: Console, line: RenderableType, *, last: bool = False) -> None:
    """Rewrite the terminal's current line, cut to its width; the `last` version stays."""
    console.control(ERASED)
    console.print(line, end="\n" if last else "\r", no_wrap=True, overflow="ellipsis")


def show(value: object, rendered: Callable[[], RenderableType], as_json: bool) -> None:
    """Print one answer: JSON for programs, or rich text for people."""
    with writing(STDOUT):
        if as_json:
            OUT.answered = True
            print(json.dumps(value, indent=1, default=str))
        else:
            OUT.print(rendered())


def show_error(error: FattnProbeError, as_json: bool) -> None:
    """Print the error that ended a command: on stderr, and for programs as the document on stdout, if there is none."""
    NOTES.print(str(error), style="red", markup=False, soft_wrap=True)
    if as_json and not OUT.answered:
        found = {"kind": type(error).__name__, "exit_code": error.exit_code, "message": str(error)}
        show({"error": found}, str, as_json)
