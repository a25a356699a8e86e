"""FlashAttention-3's schedules for a head: the chosen one with its events, and the slots of each."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from fattn_probe.lab.study.problem import StudyHead, count
from fattn_probe.lab.study.warpgroups import (
    CONSUMERS,
    RINGS,
    SCHEDULES,
    TENSOR_CORES,
    TMA,
    Event,
    Registers,
    Ring,
    Schedule,
    Timeline,
    WarpgroupPlan,
    actor,
    registers_of,
    run,
    slots_of,
)

READER = {"K": "S", "V": "PV"}


def broken_rules(events: Sequence[Event], plan: WarpgroupPlan, *, complete: bool = True) -> list[str]:
    """The events' violations of the rules of a ring of `plan.stages` buffers; in a deadlock, up to that point."""
    found = []
    for event in events:  # tile j is in stage j % s
        if event.unit in (TMA, TENSOR_CORES) and event.tile is not None and event.stage != event.tile % plan.stages:
            found.append(f"{_name(event)} uses stage {event.stage} instead of {event.tile % plan.stages}")
    found += _order(events, plan)
    if plan.shared:  # with turns, only one warpgroup multiplies at a time
        products = sorted((event for event in events if event.unit == TENSOR_CORES), key=lambda event: event.start)
        pairs = pairwise(products)
        found += [f"{_name(two)} overlaps {_name(one)}, out of turn" for one, two in pairs if two.start < one.end]
    for what in READER:
        found += _buffers(events, plan, what)
    if not complete:
        return found
    # Every tile is loaded once, and every warpgroup computes its two products and its softmax once.
    done = Counter((event.actor, event.what, event.tile) for event in events if event.tile is not None)
    tiles = range(plan.T_c)
    wanted = Counter((plan.loader, what, j) for what in READER for j in tiles)
    wanted += Counter((actor(group), what, j) for group in plan.groups for what in ("S", "P", "PV") for j in tiles)
    for key in done.keys() | wanted.keys():
        if done[key] != wanted[key]:
            who, what, place = key
            found.append(f"{what}{place} of {who} is done {done[key]} times instead of {wanted[key]}")
    return found


def _order(events: Sequence[Event], plan: WarpgroupPlan) -> Iterator[str]:
    """A tile has S, then softmax, then P V; a warpgroup's softmax and P V must follow the order of the tiles."""
    when = {(event.actor, event.what, event.tile): event for event in events}
    for group in plan.groups:
        for j in range(plan.T_c):
            after = [((what, j - 1), (what, j)) for what in ("P", "PV")] if j else []
            for first, second in [*pairwise((("S", j), ("P", j), ("PV", j))), *after]:
                one, two = when.get((actor(group), *first)), when.get((actor(group), *second))
                if two is not None and (one is None or two.start < one.end):
                    yield f"{_name(two)} starts before {first[0]}{first[1]} of {actor(group)} is done"


def _buffers(events: Sequence[Event], plan: WarpgroupPlan, what: str) -> Iterator[str]:
    """No buffer may be read before it is full, or refilled before its load is done and all consumers have read it."""
    readers: dict[int | None, list[Event]] = defaultdict(list)
    for event in events:
        if event.what == READER[what]:
            readers[event.tile].append(event)
    loads = sorted((event for event in events if event.what == what), key=lambda event: event.start)
    uses = [(load, readers.pop(load.tile, [])) for load in loads]
    for event in (event for unread in readers.values() for event in unread):
        yield f"{_name(event)} reads {what}{event.tile}, which is never loaded"
    for load, reads in uses:
        for read in reads:
            if read.start < load.end:
                yield f"{_name(read)} reads {_name(load)} before it is full"
    for stage in range(plan.stages):
        for (old, reads), (new, _) in pairwise(use for use in uses if use[0].stage == stage):
            if new.start < old.end:
                yield f"{_name(new)} and {_name(old)} are loaded into stage {stage} at the same time"
            for group in plan.groups:
                last = next((read for read in reads if read.actor == actor(group)), None)
                if last is None or last.end > new.start:
                    yield f"{_name(new)} overwrites {_name(old)} before {actor(group)} has read it"


def _name(event: Event) -> str:
    place = "" if event.tile is None else str(event.tile)
    return f"{event.what}{place}" if event.unit == TMA else f"{event.what}{place} of {event.actor}"


MOST_TILES = 256
"""The most KV tiles in a schedule."""


@dataclass(frozen=True)
class Taken:
    """The slots of a schedule, None after a deadlock; `busy`: the share of time in which the tensor cores are busy."""

    schedule: Schedule
    ring: Ring
    producer: bool
    slots: int | None
    busy: float | None


@dataclass(frozen=True)
class Scheduled:
    """The chosen schedule, its violations of the ring's rules, and the table of all schedules."""

    plan: WarpgroupPlan
    tiles: int
    timeline: Timeline
    broken: tuple[str, ...]
    registers: Registers
    table: tuple[Taken, ...]


def schedule_head(head: StudyHead, B_r: int, B_c: int, *, schedule: Schedule, stages: int, ring: Ring) -> Scheduled:
    """Schedule the head's first thread block: two warpgroups of B_r queries, or one if there is one tile."""
    tiles, consumers = count(head.n_kv, B_c), min(CONSUMERS, count(head.n_q, B_r))
    load, softmax = slots_of(B_r, head.hsk)
    plan = WarpgroupPlan(
        min(tiles, MOST_TILES), stages, schedule, ring, consumers=consumers, load=load, softmax=softmax
    )
    timeline = run(plan)
    broken = broken_rules(timeline.events, plan, complete=not timeline.deadlock)
    return Scheduled(plan, tiles, timeline, tuple(broken), registers_of(plan, B_r, B_c, head.hsv), table_of(plan))


def table_of(plan: WarpgroupPlan) -> tuple[Taken, ...]:
    """The slots of every schedule with these sizes, with and without a producer, for both kinds of ring."""
    found = []
    for schedule, ring, producer in product(SCHEDULES, RINGS, (True, False)):
        timeline = run(replace(plan, schedule=schedule, producer=producer, ring=ring))
        busy = sum(plan.product for event in timeline.events if event.unit == TENSOR_CORES)
        taken = (None, None) if timeline.deadlock else (timeline.slots, busy / timeline.slots)
        found.append(Taken(schedule, ring, producer, *taken))
    return tuple(found)
