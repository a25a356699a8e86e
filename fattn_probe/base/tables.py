"""Tables that fit the terminal: columns side by side if there is room, otherwise each record over several lines.

Nothing is cut off. If a record does not fit on a line, its heading gets a separate line, and the other cells follow
below, each after the name of its column.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

GAP = 3
GAPS = (3, 2, 1)
"""Gaps between columns, the widest first: the first one with which the table fits is used."""
INDENT = 2
TEMPLATE_ARGUMENTS = re.compile(r"(?<=\w)<(?=\w)")
LEAST_PROSE = 24
"""Narrowest width for a sentence."""
MISSING = ("", "-")  # cells that are left out of a record that takes several lines
Word = str | Text


@dataclass(frozen=True)
class Table:
    """A table: `numbers` are right-aligned columns, `prose` columns may wrap, `heading` columns name a record.

    The first column is the default heading. An empty heading continues the record above. `spaced` adds empty lines.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Word, ...], ...]
    numbers: frozenset[str] = frozenset()
    prose: frozenset[str] = frozenset()
    heading: tuple[str, ...] = ()
    spaced: bool = field(default=False, kw_only=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        natural = sum(self._natural()) + GAP * (len(self.columns) - 1)
        return Measurement(min(natural, options.max_width), min(natural, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for gap in GAPS:
            widths = self._widths(options.max_width, gap)
            if widths is not None:
                yield self._side_by_side(widths, gap)
                return
        yield from self._stacked()

    def _natural(self) -> list[int]:
        """The width of each column's widest line."""
        columns = zip(self.columns, *self.rows, strict=True)
        return [max(cell_len(line) for word in words for line in str(word).split("\n")) for words in columns]

    def _widths(self, width: int, gap: int) -> list[int] | None:
        """The width of each column; None if they do not fit. Only prose columns are narrower than their widest line."""
        natural = self._natural()
        widths = [
            min(most, LEAST_PROSE) if name in self.prose else most
            for name, most in zip(self.columns, natural, strict=True)
        ]
        spare = width - gap * (len(widths) - 1) - sum(widths)
        if spare < 0:
            return None
        while spare and widths != natural:
            neediest = max(range(len(widths)), key=lambda column: natural[column] - widths[column])
            widths[neediest] += 1
            spare -= 1
        return widths

    def _side_by_side(self, widths: Sequence[int], gap: int) -> RichTable:
        padding = (0, gap - 1, 0, 0)  # the box adds a column
        table = RichTable(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=padding, leading=int(self.spaced))
        for name, width in zip(self.columns, widths, strict=True):
            table.add_column(
                Text(name), justify="right" if name in self.numbers else "left", width=width, overflow="fold"
            )
        for row in self.rows:
            table.add_row(*map(_text, row))
        return table

    def _stacked(self) -> Iterator[RenderableType]:
        names = self.heading or self.columns[:1]
        for number, row in enumerate(self.rows):
            yield from [Text()] * (self.spaced and number > 0)
            words = dict(enumerate(map(_text, row)))
            first = [words.pop(self.columns.index(name)) for name in names]
            if any(first):
                yield Text("  ").join(_joined(word) for word in first if word)
            pairs: list[tuple[str, Text]] = []
            for place, word in words.items():  # paired line by line if name and cell have the same number of lines
                titles, lines = self.columns[place].split("\n"), word.split("\n")
                if len(titles) == len(lines):
                    pairs += [(one, line) for one, line in zip(titles, lines, strict=True) if line.plain not in MISSING]
                elif word.plain not in MISSING:
                    pairs.append((" ".join(titles), _joined(word)))
            yield Flow(pairs, indent=INDENT)


@dataclass(frozen=True)
class Flow:
    """Name-value pairs in a row; lines break between pairs, and each pair begins at a multiple of `cell` columns."""

    pairs: Sequence[tuple[str, Text]]
    cell: int = 1
    indent: int = 0

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widths = [cell_len(name) + 1 + cell_len(value.plain) for name, value in self.pairs]
        most = min(options.max_width, sum(map(self._cell, widths)))
        return Measurement(min(max(widths, default=0), most), most)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line, width = Text(), options.max_width - self.indent
        for name, value in self.pairs:
            word = Text.assemble((name, "cyan"), " " if name else "", value)
            if line and cell_len(line.plain) + cell_len(word.plain) > width:
                yield from self._lines(line, console, width)
                line = Text()
            line.append_text(word).append(" " * (self._cell(len(word)) - len(word)))
        yield from self._lines(line, console, width)

    def _cell(self, width: int) -> int:
        """The width of a pair, including the gap after it."""
        return -(-(width + GAP) // self.cell) * self.cell

    def _lines(self, line: Text, console: Console, width: int) -> Iterator[Text]:
        """A line, folded if it is too long; a kernel's name breaks before its template arguments."""
        line.rstrip()
        folded = [line]
        if cell_len(line.plain) > width > 2 * INDENT:
            parts = line.divide([place.start() for place in TEMPLATE_ARGUMENTS.finditer(line.plain)])
            folded = [word for part in parts for word in part.wrap(console, width - INDENT, overflow="fold")]
        for place, word in enumerate(folded):
            word.rstrip()
            yield Text(" " * (self.indent + INDENT * (place > 0))).append_text(word)


def labelled(rows: Mapping[str, RenderableType]) -> RichTable:
    """A grid of rows, each after its label."""
    table = RichTable.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", min_width=9, no_wrap=True)
    table.add_column(overflow="fold")
    for label, content in rows.items():
        table.add_row(label, content)
    return table


def listed(sentences: Sequence[str]) -> RichTable:
    """Sentences as a list, each with a dash; continuation lines are indented."""
    table = RichTable.grid(padding=(0, 1, 0, 0))
    for sentence in sentences:
        table.add_row("-", Text(sentence, overflow="fold"))
    return table


def _joined(word: Text) -> Text:
    """A cell on one line, with a kernel's template arguments directly after its name."""
    first, *rest = word.split("\n")
    for line in rest:
        first.append("" if line.plain.lstrip().startswith("<") else ", ").append_text(line)
    return first


def _text(word: Word) -> Text:
    """A cell as Text, so that brackets in it are not read as markup."""
    return word if isinstance(word, Text) else Text(word)
