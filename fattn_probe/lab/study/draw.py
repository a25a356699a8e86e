"""The schedule of an algorithm as a picture in the terminal, also readable without colours."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from fattn_probe.base.tables import Table, Word
from fattn_probe.base.view.characters import lines
from fattn_probe.base.view.marks import Box, Drawing, Look, Mark, Words
from fattn_probe.daily.inspect.facts import Choice, Facts
from fattn_probe.daily.inspect.view.stream_k_map import PALETTE, colour_of
from fattn_probe.lab.study.command import Subject
from fattn_probe.lab.study.problem import StepRow, count
from fattn_probe.lab.study.problem import tiles as cut
from fattn_probe.lab.study.schedules import Scheduled
from fattn_probe.lab.study.warpgroups import EXPONENTIALS, RINGS, SCHEDULES, TENSOR_CORES, TMA, Event, actor
from fattn_probe.llama.launch.tiles import Grid, index_of

MOST_ROWS = 10
ROSE, HIDDEN = "↑", "╱"
SHARES = "·▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class TilePicture:
    """The score matrix in tiles, each with its number in the schedule, or a symbol where numbers do not fit.

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
            said = f"numbers: order of the tiles; {ROSE} the maximum of a row rose, so its sums are rescaled"
        else:
            marks += [Words(0, 0, "queries"), Words(label, 0, f"KV rows 0 to {columns[-1][1] - 1}")]
            size = f"{down} x {across} tiles" if down * across > 1 else "one tile"
            said = f"each symbol is {size}: the share of rows whose maximum rose, · none to █ all"
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
        """The symbol and the style of a tile: whether it is hidden, and whether or how often the maximum rose in it."""
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
    return Text("\n".join([f"{what:<15} {read:>{width}}  ->  {written}" for what, read, written in passes]))


def stream_k_facts(subject: Subject) -> Facts:
    """The division of the head's output tiles among blocks."""
    launch = subject.launch
    grid = Grid(launch.grid.iter_k, launch.grid.iter_j, 1, 1, 1)
    kv_head, place = divmod(subject.head, subject.op.shape.group)
    first = index_of((subject.sequence, kv_head, place // launch.ncols2, 0), launch.grid) * grid.iter_k
    blocks = []
    for block in launch.blocks:  # each with the tiles of this head alone, and its share renumbered to match
        tiles = tuple(replace(work, sequence=0, z_KV=0, zt_gqa=0) for work in block.tiles if subject.covers(work.tile))
        if tiles:
            shares = ((at or 0) - first for at in (block.kbc, block.kbc_stop))
            kbc, kbc_stop = (min(max(at, 0), grid.iter_j * grid.iter_k) for at in shares)
            blocks.append(replace(block, kbc=kbc, kbc_stop=kbc_stop, tiles=tiles))
    choice = Choice("mma_f16", "flash_attn_ext_f16", {}, {"nbatch_fa": launch.nbatch_fa})
    return Facts({}, choice=choice, grid=grid, blocks=tuple(blocks))


def interval(rows: tuple[int, int]) -> str:
    """First and last row, such as `0-63`; empty for no rows."""
    first, stop = rows
    return "" if stop == first else f"{first}" if stop == first + 1 else f"{first}-{stop - 1}"


LOOKS = {
    TMA: Look("tma", style="black on #9bc995", sign="─"),
    TENSOR_CORES: Look("products", style="white on #1f4e8c", sign="─"),
    EXPONENTIALS: Look("softmax", style="black on #f2c14e", sign="─"),
}
LANES = {TMA: "TMA", TENSOR_CORES: "products", EXPONENTIALS: "softmax"}
MOST_PARTS = 2
"""A wide schedule is split into at most this many parts, one below the other; the rest becomes an ellipsis."""
ABOUT = {
    "none": "one after the other",
    "overlap": "softmax overlaps the warpgroup's own P V (algorithm 2)",
    "ping-pong": "warpgroups take turns (section 3.1)",
    "both": "turns, and the overlap in each turn",
}


@dataclass(frozen=True)
class SchedulePicture:
    """The chosen schedule's lanes."""

    scheduled: Scheduled

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plan, events, slots = self.scheduled.plan, self.scheduled.timeline.events, self.scheduled.timeline.slots
        lanes = [(TMA, plan.loader), *((unit, actor(group)) for unit in LOOKS for group in plan.groups if unit != TMA)]
        names = [LANES[unit] + (f" {who}" if unit != TMA else "") for unit, who in lanes]
        label, cell = max(map(len, names)) + 2, len(f" PV{plan.T_c - 1}")
        fit = max(1, (options.max_width - label - 1) // cell)
        groups = f"{plan.consumers} consumer warpgroup{'s' if plan.consumers > 1 else ''}"
        ring = {"pairs": "K and V released together", "apart": "K and V apart"}[plan.ring]
        stages = f"{plan.stages} stage{'s' if plan.stages > 1 else ''}, {ring}"
        times = f"a product takes 1 slot, a load {plan.load}, a softmax {plan.softmax}"
        yield Text(f"{plan.schedule}: {ABOUT[plan.schedule]}; a producer and {groups}; {stages}; {times}.")
        for part in range(min(MOST_PARTS, -(-slots // fit))):
            first, stop = part * fit, min((part + 1) * fit, slots)
            marks: list[Mark] = [Words(0, 0, "slot"), *(Words(0, line, name) for line, name in enumerate(names, 1))]
            for at in range(1, stop - first + 1):
                marks.append(Words(label + at * cell, 0, str(first + at - 1), end=True))
                marks += [Words(label + at * cell, line, "·", end=True) for line in range(1, len(lanes) + 1)]
            for event in events:
                start, end = max(event.start, first), min(event.end, stop)
                if start < end:
                    word = _word(event).rjust(cell - 1) if event.start >= first else ""
                    place = label + (start - first) * cell + 1, lanes.index((event.unit, event.actor)) + 1
                    marks.append(Box(*place, (end - start) * cell - 1, 1, LOOKS[event.unit], word))
            if part == MOST_PARTS - 1 and stop < slots:
                marks += [Words(label + (stop - first) * cell, line, "…") for line in range(1, len(lanes) + 1)]
            yield from lines(Drawing("", options.max_width, len(lanes) + 1, tuple(marks)))
        yield Text("K, V, Q loads   S = QK^T   P = softmax   PV = O + P V   n  KV tile   ─ continues   · idle", "dim")


def _word(event: Event) -> str:
    return event.what + ("" if event.tile is None else str(event.tile))


def schedule_lines(scheduled: Scheduled, most: int) -> Iterator[RenderableType]:
    """The whole section."""
    plan, registers = scheduled.plan, scheduled.registers
    yield SchedulePicture(scheduled)
    if plan.T_c < scheduled.tiles:
        yield Text(f"The first {plan.T_c} of {scheduled.tiles} KV tiles.", "dim")
    if scheduled.timeline.deadlock:
        yield Text("Deadlock: every warpgroup waits.", "bold red")
        for who, signals in scheduled.timeline.deadlock.items():
            yield Text(f"  {who} waits for: {', '.join(signals)}", "red")
    yield Text()
    rows: list[tuple[Word, ...]] = []
    for event in scheduled.timeline.events[:most]:
        stage = "" if event.stage is None else str(event.stage)
        slots = f"{event.start}" if event.end == event.start + 1 else f"{event.start}-{event.end - 1}"
        rows.append((slots, event.actor, _word(event), stage, ", ".join(event.waited_for)))
    columns = ("slot", "who", "what", "stage", "waited for")
    yield Table(columns, tuple(rows), frozenset({"slot", "stage"}), frozenset({"waited for"}), heading=columns[:3])
    if len(scheduled.timeline.events) > most:
        yield Text(f"{len(scheduled.timeline.events) - most} more", "dim")
    moved = f"{registers.launch} registers per thread at launch; setmaxnreg: producer {registers.producer}"
    needed = f"consumers {registers.consumer}, of which accumulators need {registers.accumulators}"
    yield Text(f"{moved}, {needed}.")
    if scheduled.broken:
        yield Text("; ".join(scheduled.broken), "bold red")
    else:
        yield Text.assemble(("No buffer is read before it is full or filled before it is empty.", "green"))
    yield Text(f"\nSlots of {plan.T_c} KV tiles with {plan.stages} stage{'s' if plan.stages > 1 else ''}", "bold")
    found: dict[tuple[str, str, bool], Word] = {
        (one.schedule, one.ring, one.producer): Text("deadlock", "red")
        if one.slots is None
        else f"{one.slots} ({one.busy:.0%})"
        for one in scheduled.table
    }
    pairs = [(ring, producer) for ring in reversed(RINGS) for producer in (True, False)]
    heads = [f"{ring},\n{'producer' if producer else 'WG1 loads'}" for ring, producer in pairs]
    taken = [(name, *(found[(name, *pair)] for pair in pairs)) for name in SCHEDULES]
    yield Table(("schedule", *heads), tuple(taken), frozenset(heads))
    yield Text(
        "In brackets: how much of the time the tensor cores are busy. Without a producer, WG1 issues the loads.", "dim"
    )
