"""Names and values in a terminal, and how values are spelled."""

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from fattn_probe.inspect.facts import Value

GAP = 3


def spell(value: Value) -> str:
    """A value as the source would spell it."""
    match value:
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            gap = ", " if any(isinstance(item, str) for item in value) else " "
            return gap.join(spell(item) for item in value)
        case float():
            return f"{value:.9g}"
        case _:
            return str(value)


@dataclass(frozen=True)
class Pairs:
    """Names and values one after the other: lines break between pairs; each begins at a multiple of `cell` columns."""

    values: Mapping[str, Value]
    cell: int = 1

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widths = [len(f"{name} {spell(value)}") for name, value in self.values.items()]
        return Measurement(max(widths, default=0), min(options.max_width, sum(map(self._cell, widths))))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = Text()
        for name, value in self.values.items():
            word = Text.assemble((name, "cyan"), " ", spell(value))
            if line and len(line) + len(word) > options.max_width:
                line.rstrip()
                yield line
                line = Text()
            line.append_text(word).append(" " * (self._cell(len(word)) - len(word)))
        line.rstrip()
        yield line

    def _cell(self, width: int) -> int:
        """The columns that a pair takes up, with the gap after it."""
        return -(-(width + GAP) // self.cell) * self.cell
