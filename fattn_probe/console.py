"""The terminal: answers on stdout, progress and notes on stderr."""

import json
import sys
from collections.abc import Callable

from rich.console import Console, RenderableType

OUT = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
NOTES = Console(stderr=True, highlight=False)


def show(value: object, rendered: Callable[[], RenderableType], as_json: bool) -> None:
    """One answer: JSON for programs, or rich text for people."""
    if as_json:
        print(json.dumps(value, indent=1, default=str))
    else:
        OUT.print(rendered())
