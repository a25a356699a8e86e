"""The schedule of an algorithm as a picture in the terminal, also readable without colours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from fattn_probe.base.view.characters import lines
from fattn_probe.base.view.marks import Box, Drawing, Look, Mark, Words
from fattn_probe.daily.inspect.facts import Choice, Facts
from fattn_probe.daily.inspect.view.stream_k_map import PALETTE, colour_of
from fattn_probe.daily.inspect.view.work_picture import TerminalMap
from fattn_probe.lab.study.algorithms import Subject
from fattn_probe.lab.study.problem import count
from fattn_probe.lab.study.problem import tiles as cut
from fattn_probe.lab.study.steps import StepRow
from fattn_probe.llama.launch.tiles import BlockWork, Grid, index_of

MOST_ROWS = 10
ROSE, HIDDEN = "↑", "╱"
SHARES = "·▁▂▃▄▅▆▇█"


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
        numbered = len(rows) <= MOST_ROWS and label + cell * len(columns) <= options.max_width
        down = across = 1
        if not numbered:
            cell, down, across = (
                1,
                count(len(rows), MOST_ROWS),
                count(len(columns), max(1, options.max_width - label - 2)),
            )
        names = [interval((rows[k.start][0], rows[k.stop - 1][1])) for k in cut(len(rows), down)]
        label = max(len("queries"), *map(len, names)) + 1
        row_of, column_of = ({key: place for place, key in enumerate(keys)} for keys in (rows, columns))
        groups: dict[tuple[int, int], list[tuple[int, StepRow]]] = {}
        for number, step in enumerate(tiles, 1):
            place = row_of[step.queries] // down, column_of[step.kv] // across
            groups.setdefault(place, []).append((number, step))
        marks: list[Mark] = [Words(0, line, name) for line, name in enumerate(names, 1)]
        if numbered:
            ends = ((label + cell * (place + 1) - 1, first) for place, (first, _) in enumerate(columns))
            marks += [Words(0, 0, "KV row"), *(Words(end, 0, str(first), end=True) for end, first in ends)]
            said = f"numbers: order of the tiles; {ROSE} the maximum of a row rose, its sums are rescaled"
        else:
            marks += [Words(0, 0, "queries"), Words(label, 0, f"KV rows 0 to {columns[-1][1] - 1}")]
            size = f"{down} x {across} tiles" if down * across > 1 else "one tile"
            said = f"each sign is {size}: the share of rows whose maximum rose, · none to █ all"
        for (line, column), group in groups.items():
            sign, style = self._look([step for _, step in group], numbered)
            words = f"{group[0][0]}{sign}" if numbered else sign
            marks.append(Box(label + column * cell, line + 1, cell, 1, Look("", style=style), words.rjust(cell)))
        yield from lines(Drawing("", options.max_width, len(names) + 1, tuple(marks)))
        yield Text(said, "dim")
        legend = {
            f"{HIDDEN}  hidden by the mask": any(not step.visible for step in tiles),
            "colours: splits": self.by_worker,
        }
        if any(legend.values()):
            yield Text("   ".join(words for words, applies in legend.items() if applies), "dim")

    def _look(self, steps: Sequence[StepRow], numbered: bool) -> tuple[str, str]:
        """The sign and the style of tiles: hidden, or whether or how often the maximum rose."""
        rose, again = sum(step.rose or 0 for step in steps), sum(step.again or 0 for step in steps)
        visible = any(step.visible for step in steps)
        share = SHARES[count(rose * (len(SHARES) - 1), again)] if again else SHARES[0]
        sign = HIDDEN if not visible else share if not numbered else ROSE if rose else " "
        if self.by_worker:
            back, fore = PALETTE[colour_of(steps[0].worker)]
            return sign, f"{fore} on {back}"
        return sign, "dim" if not visible else "bold yellow" if rose else ""


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
