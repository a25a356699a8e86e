"""FlashAttention-3's schedule as text: a lane for each unit and warpgroup, slot by slot, and the waits."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from fattn_probe.base.tables import Table, Word
from fattn_probe.base.view.characters import lines
from fattn_probe.base.view.marks import Box, Drawing, Look, Mark, Words
from fattn_probe.lab.study.events import Event
from fattn_probe.lab.study.schedules import Scheduled, Taken
from fattn_probe.lab.study.warpgroups import EXPONENTIALS, RINGS, SCHEDULES, TENSOR_CORES, TMA, WarpgroupPlan, actor

LOOKS = {
    TMA: Look("tma", style="black on #9bc995", sign="─"),
    TENSOR_CORES: Look("products", style="white on #1f4e8c", sign="─"),
    EXPONENTIALS: Look("softmax", style="black on #f2c14e", sign="─"),
}
LANES = {TMA: "TMA", TENSOR_CORES: "products", EXPONENTIALS: "softmax"}
MOST_PARTS = 2
"""Lines of lanes below each other; a longer schedule ends with an ellipsis."""
ABOUT = {
    "none": "one after the other",
    "overlap": "softmax beside the warpgroup's own P V (algorithm 2)",
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
        yield Text(schedule_words(plan))
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
        yield Text("K, V, Q loads   S = QK^T   P = softmax   PV = O + P V   n  KV tile   ─ goes on   · idle", "dim")


def schedule_words(plan: WarpgroupPlan) -> str:
    """The schedule and its sizes in words."""
    groups = f"{plan.consumers} consumer warpgroup{'s' if plan.consumers > 1 else ''}"
    ring = {"pairs": "K and V released together", "apart": "K and V apart"}[plan.ring]
    stages = f"{plan.stages} stage{'s' if plan.stages > 1 else ''}, {ring}"
    times = f"a product takes 1 slot, a load {plan.load}, a softmax {plan.softmax}"
    return f"{plan.schedule}: {ABOUT[plan.schedule]}; a producer and {groups}; {stages}; {times}."


def _word(event: Event) -> str:
    return event.what + ("" if event.tile is None else str(event.tile))


def event_table(events: Sequence[Event], most: int) -> Iterator[RenderableType]:
    """The waits of the first events, and the stage of the ring that they use."""
    rows: list[tuple[Word, ...]] = []
    for event in events[:most]:
        stage = "" if event.stage is None else str(event.stage)
        slots = f"{event.start}" if event.end == event.start + 1 else f"{event.start}-{event.end - 1}"
        rows.append((slots, event.actor, _word(event), stage, ", ".join(event.waited_for)))
    columns = ("slot", "who", "what", "stage", "waited for")
    yield Table(columns, tuple(rows), frozenset({"slot", "stage"}), frozenset({"waited for"}), heading=columns[:3])
    if len(events) > most:
        yield Text(f"{len(events) - most} more", "dim")


def deadlock_lines(deadlock: Mapping[str, Sequence[str]]) -> Iterator[Text]:
    """The waits in the deadlock."""
    yield Text("Deadlock: every warpgroup waits.", "bold red")
    for who, signals in deadlock.items():
        yield Text(f"  {who} waits for: {', '.join(signals)}", "red")


def taken_table(scheduled: Scheduled) -> Table:
    """Slots of every schedule, with and without a producer, for both kinds of ring."""
    found = {(one.schedule, one.ring, one.producer): one for one in scheduled.table}
    pairs = [(ring, producer) for ring in reversed(RINGS) for producer in (True, False)]
    columns = ("schedule", *(f"{ring},\n{'producer' if producer else 'WG1 loads'}" for ring, producer in pairs))
    rows = [(name, *(_taken_word(found[(name, *pair)]) for pair in pairs)) for name in SCHEDULES]
    return Table(columns, tuple(rows), frozenset(columns[1:]))


def _taken_word(taken: Taken) -> Word:
    if taken.slots is None or taken.busy is None:
        return Text("deadlock", "red")
    return f"{taken.slots} ({taken.busy:.0%})"


def schedule_lines(scheduled: Scheduled, most: int) -> Iterator[RenderableType]:
    """The whole section."""
    plan, registers = scheduled.plan, scheduled.registers
    yield SchedulePicture(scheduled)
    if plan.T_c < scheduled.tiles:
        yield Text(f"The first {plan.T_c} of {scheduled.tiles} KV tiles.", "dim")
    if scheduled.timeline.deadlock:
        yield from deadlock_lines(scheduled.timeline.deadlock)
    yield Text()
    yield from event_table(scheduled.timeline.events, most)
    moved = f"{registers.launch} registers a thread at launch; setmaxnreg: producer {registers.producer}"
    needed = f"consumers {registers.consumer}, of which accumulators need {registers.accumulators}"
    yield Text(f"{moved}, {needed}.")
    if scheduled.broken:
        yield Text("; ".join(scheduled.broken), "bold red")
    else:
        yield Text.assemble(("No buffer is read before it is full or filled before it is empty.", "green"))
    yield Text(f"\nSlots of {plan.T_c} KV tiles with {plan.stages} stage{'s' if plan.stages > 1 else ''}", "bold")
    yield taken_table(scheduled)
    yield Text(
        "In brackets: how much of the time the tensor cores work. Without a producer, WG1 issues the loads.", "dim"
    )
