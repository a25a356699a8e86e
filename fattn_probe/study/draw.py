"""The schedule of an algorithm as a picture in the terminal, also readable without colours."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from fattn_probe.inspect.facts import Choice, Facts
from fattn_probe.inspect.view.stream_k_map import PALETTE, colour_of
from fattn_probe.inspect.view.terminal_map import TerminalMap
from fattn_probe.launch.tiles import BlockWork, Grid, index_of
from fattn_probe.study.algorithms import Subject
from fattn_probe.study.problem import count
from fattn_probe.study.problem import tiles as cut
from fattn_probe.study.steps import StepRow

MOST_ROWS = 10
ROSE, HIDDEN = "↑", "╱"
SHARES = "·▁▂▃▄▅▆▇█"
Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class TilePicture:
    """The score matrix in tiles, each with its number in the schedule, or a sign where numbers do not fit.

    With `by_worker`, a tile has the colour of its split.
    """

    steps: Sequence[StepRow]
    by_worker: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        tiles = [step for step in self.steps if step.what == "tile"]
        rows, columns = sorted({step.queries for step in tiles}), sorted({step.kv for step in tiles})
        label = max(len("queries"), *(len(interval(row)) for row in rows)) + 1
        cell = max(len(str(len(tiles))) + 1, len(str(columns[-1][0]))) + 1
        if len(rows) > MOST_ROWS or label + cell * len(columns) > options.max_width:
            yield from self._condensed(tiles, rows, columns, options.max_width - label - 2)
        else:
            yield from self._numbered(tiles, rows, columns, cell)
        legend = {
            f"{HIDDEN}  hidden by the mask": any(not step.visible for step in tiles),
            "colours: splits": self.by_worker,
        }
        if any(legend.values()):
            yield Text("   ".join(words for words, applies in legend.items() if applies), "dim")

    def _numbered(self, tiles: Sequence[StepRow], rows: Ranges, columns: Ranges, cell: int) -> Iterator[Text]:
        """Each tile with its number."""
        label = max(len("queries"), *(len(interval(row)) for row in rows)) + 1
        numbers = {(step.queries, step.kv): (number, [step]) for number, step in enumerate(tiles, 1)}
        yield Text("KV row".ljust(label) + "".join(f"{first} ".rjust(cell) for first, _ in columns), "dim")
        for row in rows:
            found = [numbers[row, kv] for kv in columns]
            cells = [
                (f"{number}{_mark(steps, ROSE if _rose(steps) else ' ')}".rjust(cell), self._style(steps))
                for number, steps in found
            ]
            yield Text.assemble((interval(row).ljust(label), "dim"), *cells, no_wrap=True)
        yield Text(f"numbers: order of the tiles; {ROSE} the maximum of a row rose, its sums are rescaled", "dim")

    def _condensed(self, tiles: Sequence[StepRow], rows: Ranges, columns: Ranges, width: int) -> Iterator[Text]:
        """One sign for a tile, or for `down` x `across` tiles."""
        down, across = count(len(rows), MOST_ROWS), count(len(columns), max(1, width))
        row_of, column_of = ({key: place for place, key in enumerate(keys)} for keys in (rows, columns))
        groups: dict[tuple[int, int], list[StepRow]] = {}
        for step in tiles:
            groups.setdefault((row_of[step.queries] // down, column_of[step.kv] // across), []).append(step)
        names = [interval((part[0][0], part[-1][1])) for part in (rows[k.start : k.stop] for k in cut(len(rows), down))]
        label = max(len("queries"), *map(len, names)) + 1
        yield Text("queries".ljust(label) + f"KV rows 0 to {columns[-1][1] - 1}", "dim")
        for line, name in enumerate(names):
            members = [groups[line, column] for column in range(count(len(columns), across))]
            signs = [(_mark(steps, _share(steps)), self._style(steps)) for steps in members]
            yield Text.assemble((name.ljust(label), "dim"), *signs, no_wrap=True)
        size = f"{down} x {across} tiles" if down * across > 1 else "one tile"
        yield Text(f"each sign is {size}: the share of rows whose maximum rose, · none to █ all", "dim")

    def _style(self, steps: Sequence[StepRow]) -> str:
        if self.by_worker:
            back, fore = PALETTE[colour_of(steps[0].worker)]
            return f"{fore} on {back}"
        return {HIDDEN: "dim", ROSE: "bold yellow"}.get(_mark(steps, ROSE if _rose(steps) else ""), "")


def _rose(steps: Sequence[StepRow]) -> bool:
    return any(step.rose for step in steps)


def _mark(steps: Sequence[StepRow], seen: str) -> str:
    """The sign of one or several tiles; `seen` unless all of them are hidden."""
    return seen if any(step.visible for step in steps) else HIDDEN


def _share(steps: Sequence[StepRow]) -> str:
    """The share of rows whose maximum rose, as a sign."""
    rose, again = sum(step.rose or 0 for step in steps), sum(step.again or 0 for step in steps)
    return SHARES[count(rose * (len(SHARES) - 1), again)] if again else SHARES[0]


def standard_picture(reads: Mapping[str, int], writes: Mapping[str, int]) -> Text:
    """The three passes, with the slow-memory traffic of each."""
    mask = f", mask {reads['mask']}" if "mask" in reads else ""
    passes = (
        ("S = Q K^T", f"Q {reads['Q']}, K {reads['K']}{mask}", f"S {writes['S']}"),
        ("P = softmax(S)", f"S {reads['S']}", f"P {writes['P']}, L {writes['L']}"),
        ("O = P V", f"P {reads['P']}, V {reads['V']}", f"O {writes['O']}"),
    )
    width = max(len(read) for _, read, _ in passes)
    lines = [f"{what:<15} {read:>{width}}  ->  {written}" for what, read, written in passes]
    return Text("\n".join(lines))


def stream_k_picture(subject: Subject) -> RenderableType:
    """The head's output tiles and the blocks that compute them: the map of `inspect`, for these tiles only."""
    launch = subject.launch
    grid = Grid(launch.grid.iter_k, launch.grid.iter_j, 1, 1, 1)
    kv_head, place = divmod(subject.head, subject.op.shape.group)
    first = index_of((subject.sequence, kv_head, place // launch.ncols2, 0), launch.grid) * grid.iter_k
    blocks = tuple(_restricted(block, subject, grid, first) for block in launch.blocks)
    choice = Choice("mma_f16", "flash_attn_ext_f16", {}, {"nbatch_fa": launch.nbatch_fa})
    working = tuple(block for block in blocks if block.tiles)
    return TerminalMap(Facts({}, choice=choice, grid=grid, blocks=working), most=MOST_ROWS)


def _restricted(block: BlockWork, subject: Subject, grid: Grid, first: int) -> BlockWork:
    """A block restricted to the tiles of this head, with its share renumbered to match."""
    tiles = tuple(replace(work, sequence=0, z_KV=0, zt_gqa=0) for work in block.tiles if subject.covers(work.tile))
    most = grid.iter_j * grid.iter_k
    kbc, kbc_stop = (min(max((at or 0) - first, 0), most) for at in (block.kbc, block.kbc_stop))
    return replace(block, kbc=kbc, kbc_stop=kbc_stop, tiles=tiles)


def interval(rows: tuple[int, int]) -> str:
    """First and last row, such as `0-63`; empty for no rows."""
    first, stop = rows
    return "" if stop == first else f"{first}" if stop == first + 1 else f"{first}-{stop - 1}"
