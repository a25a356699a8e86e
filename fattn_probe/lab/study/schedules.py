"""FlashAttention-3's schedules for a head: the chosen one with its events, and the slots of each."""

from dataclasses import dataclass, replace

from fattn_probe.lab.study.events import Timeline
from fattn_probe.lab.study.problem import StudyHead, count
from fattn_probe.lab.study.ring import broken_rules
from fattn_probe.lab.study.warpgroups import (
    CONSUMERS,
    RINGS,
    SCHEDULES,
    TENSOR_CORES,
    Registers,
    Ring,
    Schedule,
    WarpgroupPlan,
    registers_of,
    run,
    slots_of,
)

MOST_TILES = 256
"""KV tiles of a schedule."""


@dataclass(frozen=True)
class ScheduleChoice:
    """The schedule to show in detail."""

    schedule: Schedule = "both"
    stages: int = 2
    ring: Ring = "apart"


@dataclass(frozen=True)
class Taken:
    """The slots of a schedule, None after a deadlock; `busy`: the share of time in which the tensor cores work."""

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


def schedule_head(head: StudyHead, B_r: int, B_c: int, choice: ScheduleChoice) -> Scheduled:
    """Schedule the head's first block of threads: two warpgroups of B_r queries, or one if there is one tile."""
    slots, tiles = slots_of(B_r, head.hsk), count(head.n_kv, B_c)
    plan = WarpgroupPlan(
        T_c=min(tiles, MOST_TILES),
        stages=choice.stages,
        schedule=choice.schedule,
        ring=choice.ring,
        consumers=min(CONSUMERS, count(head.n_q, B_r)),
        load=slots.load,
        softmax=slots.softmax,
    )
    timeline = run(plan)
    broken = broken_rules(timeline.events, plan, complete=not timeline.deadlock)
    registers = registers_of(plan, B_r, B_c, head.hsv)
    return Scheduled(plan, tiles, timeline, tuple(broken), registers, table_of(plan))


def table_of(plan: WarpgroupPlan) -> tuple[Taken, ...]:
    """The slots of every schedule with these sizes, with and without a producer, for both kinds of ring."""
    return tuple(
        _taken(replace(plan, schedule=schedule, producer=producer, ring=ring))
        for schedule in SCHEDULES
        for ring in RINGS
        for producer in (True, False)
    )


def _taken(plan: WarpgroupPlan) -> Taken:
    timeline = run(plan)
    if timeline.deadlock:
        return Taken(plan.schedule, plan.ring, plan.producer, None, None)
    products = sum(plan.product for event in timeline.events if event.unit == TENSOR_CORES)
    return Taken(plan.schedule, plan.ring, plan.producer, timeline.slots, products / timeline.slots)
