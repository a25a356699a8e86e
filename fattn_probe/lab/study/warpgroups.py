"""FlashAttention-3's warpgroups as programs: a producer that fills a ring of buffers, and consumers that read it.

Shah et al., 2024, arXiv 2407.08608: algorithm 1 is the producer and its consumers, algorithm 2 a consumer whose softmax
overlaps its own products, section 3.1 the ping-pong between two warpgroups.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

WHOLE = 2
"""The work of a unit in a slot; even, so that half of it is an integer."""


@dataclass(frozen=True)
class Wait:
    """Continue when all of these signals are set; a signal is never reset."""

    signals: tuple[str, ...]


@dataclass(frozen=True)
class Tell:
    """Set a signal."""

    signal: str


@dataclass(frozen=True)
class Work:
    """Start work in a hardware unit without waiting for it; `done` is set when the work ends.

    `tile` is the KV tile and `stage` the buffer that is read or filled; Q has neither.
    """

    unit: str
    what: str
    tile: int | None
    stage: int | None
    slots: int
    done: str


Instruction = Wait | Tell | Work
Program = tuple[Instruction, ...]


@dataclass(frozen=True)
class Event:
    """Work that was done in slots `start` to `end` - 1; `waited_for`: the signals that its actor waited for."""

    actor: str
    unit: str
    what: str
    tile: int | None
    stage: int | None
    start: int
    end: int
    waited_for: tuple[str, ...]


@dataclass(frozen=True)
class Timeline:
    """All events in order of their start; `deadlock`: the signals that each stuck actor waits for."""

    events: tuple[Event, ...]
    deadlock: Mapping[str, tuple[str, ...]]

    @property
    def slots(self) -> int:
        """The number of slots until the last event ends."""
        return max((event.end for event in self.events), default=0)


@dataclass
class _Started:
    """Work queued on a unit; it starts when the actor's older work on this unit is done."""

    work: Work
    waited: tuple[str, ...]
    left: int
    start: int | None = None


@dataclass
class _Actor:
    """An actor's place in its program, and its work on each unit, oldest first."""

    name: str
    program: Program
    at: int = 0
    waited: tuple[str, ...] = ()
    started: dict[str, list[_Started]] = field(default_factory=dict)

    def missing(self, told: set[str]) -> tuple[str, ...]:
        """The signals that the actor is waiting for."""
        step = self.program[self.at] if self.at < len(self.program) else None
        return tuple(signal for signal in step.signals if signal not in told) if isinstance(step, Wait) else ()

    def advance(self, told: set[str]) -> bool:
        """Run up to the next signal that is not set; returns whether the actor advanced."""
        first = self.at
        while self.at < len(self.program) and not self.missing(told):
            step = self.program[self.at]
            if isinstance(step, Tell):
                told.add(step.signal)
            elif isinstance(step, Work):
                new = _Started(step, self.waited, WHOLE * step.slots)
                self.started.setdefault(step.unit, []).append(new)
                self.waited = ()
            self.at += 1
        return self.at > first


def simulate(programs: Mapping[str, Program]) -> Timeline:
    """Run the programs from slot 0 until none can continue; every program ends, or is in `deadlock`."""
    actors = [_Actor(name, program) for name, program in programs.items()]
    told: set[str] = set()
    events: list[Event] = []
    slot = 0
    while True:
        while any([actor.advance(told) for actor in actors]):
            pass
        if not any(works for actor in actors for works in actor.started.values()):
            break
        for actor in actors:
            actor.waited += tuple(signal for signal in actor.missing(told) if signal not in actor.waited)
        events += _slot(actors, slot, told)
        slot += 1
    events.sort(key=lambda event: (event.start, event.end))
    return Timeline(tuple(events), {actor.name: found for actor in actors if (found := actor.missing(told))})


def _slot(actors: list[_Actor], slot: int, told: set[str]) -> list[Event]:
    """Let every unit work for one slot; returns the events that end with that slot."""
    ended: list[Event] = []
    for unit in sorted({unit for actor in actors for unit, works in actor.started.items() if works}):
        users = [(actor, actor.started[unit]) for actor in actors if actor.started.get(unit)]
        for actor, works in users:
            oldest = works[0]
            oldest.start = slot if oldest.start is None else oldest.start
            oldest.left -= max(1, WHOLE // len(users))
            if oldest.left <= 0:
                works.pop(0)
                work = oldest.work
                told.add(work.done)
                place = (actor.name, unit, work.what, work.tile, work.stage)
                ended.append(Event(*place, oldest.start, slot + 1, oldest.waited))
    return ended


Schedule = Literal["none", "overlap", "ping-pong", "both"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
Ring = Literal["pairs", "apart"]
RINGS: tuple[Ring, ...] = get_args(Ring)
"""A stage contains K and V of a tile (algorithm 1), or K and V have separate rings (algorithm 2)."""
TMA, TENSOR_CORES, EXPONENTIALS = "TMA", "tensor cores", "exponentials"
PRODUCER = "producer"
CONSUMERS = 2

CLOCK, SMS = 1.83e9, 132
L2_BYTES = 12e12 / (CLOCK * SMS)
"""Bytes per clock that an SM of an H100 reads from L2 if all SMs do: 12 TB/s (table 1 of the paper)."""
FLOPS = 4096
"""f16 operations per clock of an SM's tensor cores: 989 TFLOPS (section 3.1)."""
EXPS = 16
"""Exponentials per clock of an SM (section 3.1)."""

THREADS = 128
REGISTERS = 65536 // THREADS
"""The limit on the sum, over the warpgroups of an SM, of their registers per thread."""
PRODUCER_REGISTERS = {1: 56, 2: 24}
"""A producer's registers, by number of consumers, in Dao-AILab/flash-attention (hopper/flash_fwd_kernel_sm90.h)."""


@dataclass(frozen=True)
class WarpgroupPlan:
    """A thread block on an SM: `consumers` warpgroups of B_r queries each, T_c KV tiles, a ring of `stages`.

    `load`, `product` and `softmax` are slots: K or V of a tile, one of its two products, its exponentials.
    """

    T_c: int
    stages: int
    schedule: Schedule
    ring: Ring = "apart"
    producer: bool = True
    consumers: int = CONSUMERS
    load: int = 1
    softmax: int = 1
    product: int = 1

    @property
    def groups(self) -> tuple[int, ...]:
        """The numbers of the consumer warpgroups."""
        return tuple(range(1, self.consumers + 1))

    @property
    def loader(self) -> str:
        """The issuer of the loads: the producer, or without one the first consumer."""
        return PRODUCER if self.producer else actor(1)

    @property
    def shared(self) -> bool:
        """Whether the consumers take turns."""
        return self.schedule in ("ping-pong", "both")

    @property
    def overlapped(self) -> bool:
        """Whether a consumer's softmax overlaps its own product P V of the previous tile."""
        return self.schedule in ("overlap", "both")


def slots_of(B_r: int, d: int) -> tuple[int, int]:
    """The slots of a load and of a softmax on an H100 in f16, rounded to integers; the KV tile's size cancels out.

    A warpgroup's product, 2 B_r B_c d operations, takes one slot; a load has 2 B_c d bytes, a softmax B_r B_c exps.
    """
    product = 2 * B_r * d / FLOPS
    return max(1, round(2 * d / L2_BYTES / product)), max(1, round(B_r / EXPS / product))


@dataclass(frozen=True)
class Registers:
    """Registers per thread: at launch, after `setmaxnreg`, and for a consumer's accumulators."""

    launch: int
    producer: int
    consumer: int
    accumulators: int


def registers_of(plan: WarpgroupPlan, B_r: int, B_c: int, d_v: int) -> Registers:
    """The registers that `setmaxnreg` moves from the producer to the consumers; multiples of 8, at most 256.

    Accumulators are float32: O (B_r x d_v), S (B_r x B_c), and the next S if products and softmax overlap.
    """
    groups = plan.consumers + plan.producer
    launch = _eights(REGISTERS // groups)
    scores = 2 if plan.overlapped else 1
    accumulators = -(-B_r * (d_v + scores * B_c) // THREADS)
    if not plan.producer:
        return Registers(launch, 0, launch, accumulators)
    left = PRODUCER_REGISTERS[plan.consumers]
    return Registers(launch, left, _eights((REGISTERS - left) // plan.consumers), accumulators)


def _eights(number: int) -> int:
    return min(256, number // 8 * 8)


def run(plan: WarpgroupPlan) -> Timeline:
    """The schedule's events."""
    return simulate(programs(plan))


def programs(plan: WarpgroupPlan) -> Mapping[str, Program]:
    """The program of each warpgroup."""
    loader = {PRODUCER: tuple(produce(plan))} if plan.producer else {}
    return loader | {actor(group): tuple(consume(plan, group)) for group in plan.groups}


def actor(group: int) -> str:
    """A consumer warpgroup's name."""
    return f"WG{group}"


def produce(plan: WarpgroupPlan) -> Iterator[Instruction]:
    """The producer of algorithm 1, lines 4 to 10: Q, then every tile when its stage is empty."""
    yield _load(plan, "Q", None)
    for j in range(plan.T_c):
        yield from _fill(plan, j)


def _fill(plan: WarpgroupPlan, j: int) -> Iterator[Instruction]:
    """Lines 7 to 9: when all consumers have released a stage, fill it again, without waiting for the load."""
    before = j - plan.stages
    for what in ("K", "V"):
        if before >= 0:
            together = ("K", "V") if plan.ring == "pairs" else (what,)
            yield Wait(tuple(_released(group, one, before) for one in together for group in plan.groups))
        yield _load(plan, what, j)


def consume(plan: WarpgroupPlan, group: int) -> Iterator[Instruction]:
    """A consumer, which waits for its turn to multiply if `shared`, and loads the tiles if there is no producer."""
    loads = not plan.producer and group == 1
    if loads:
        yield _load(plan, "Q", None)
        for j in range(min(plan.stages, plan.T_c)):
            yield from _fill(plan, j)
    if plan.shared and group == 1:
        yield Tell(_turn(1, 0))
    yield Wait((_full("Q", None),))
    body = _overlapped if plan.overlapped else _in_turns if plan.shared else _one_by_one
    yield from body(plan, group, loads)


def _one_by_one(plan: WarpgroupPlan, group: int, loads: bool) -> Iterator[Instruction]:
    """Algorithm 1, lines 15 to 23."""
    for j in range(plan.T_c):
        yield from _multiplied(plan, group, "S", j)
        yield from _softmax(plan, group, j)
        yield from _multiplied(plan, group, "PV", j)
        yield from _refill(plan, j) if loads else ()


def _in_turns(plan: WarpgroupPlan, group: int, loads: bool) -> Iterator[Instruction]:
    """Section 3.1: P V of a tile and S of the next in one turn; the softmax while the other warpgroup has its turn."""
    for j in range(plan.T_c + 1):
        yield Wait((_turn(group, j),))
        if j > 0:
            yield from _multiplied(plan, group, "PV", j - 1)
        if j < plan.T_c:
            yield from _multiplied(plan, group, "S", j)
        yield Tell(_next_turn(plan, group, j))
        if j < plan.T_c:
            yield from _softmax(plan, group, j)
        yield from _refill(plan, j - 1) if loads and j > 0 else ()


def _overlapped(plan: WarpgroupPlan, group: int, loads: bool) -> Iterator[Instruction]:
    """Algorithm 2: S of a tile and P V of the previous one are issued together; the softmax waits only for S."""
    for j in range(plan.T_c + 1):
        done: tuple[str, ...] = ()
        yield from [Wait((_turn(group, j),))] if plan.shared else ()
        if j < plan.T_c:
            yield from (Wait((_full("K", j),)), _product(plan, group, "S", j))
        if j > 0:
            yield from (Wait((_full("V", j - 1),)), _product(plan, group, "PV", j - 1))
            done = (_done(group, "PV", j - 1),)
        if j < plan.T_c:
            yield from (Wait((_done(group, "S", j),)), Tell(_released(group, "K", j)), _exponentials(plan, group, j))
        yield Wait(done)
        yield from [Tell(_next_turn(plan, group, j))] if plan.shared else ()
        yield from [Wait((_done(group, "P", j),))] if j < plan.T_c else ()
        if j > 0:
            yield Tell(_released(group, "V", j - 1))
            yield from _refill(plan, j - 1) if loads else ()


def _refill(plan: WarpgroupPlan, j: int) -> Iterator[Instruction]:
    """Without a producer: load the tile that replaces tile j."""
    if j + plan.stages < plan.T_c:
        yield from _fill(plan, j + plan.stages)


def _multiplied(plan: WarpgroupPlan, group: int, what: str, j: int) -> tuple[Instruction, ...]:
    """Wait for K or V, multiply, and release the buffer."""
    operand, product = {"S": "K", "PV": "V"}[what], _product(plan, group, what, j)
    return Wait((_full(operand, j),)), product, Wait((product.done,)), Tell(_released(group, operand, j))


def _softmax(plan: WarpgroupPlan, group: int, j: int) -> tuple[Instruction, ...]:
    return _exponentials(plan, group, j), Wait((_done(group, "P", j),))


def _load(plan: WarpgroupPlan, what: str, j: int | None) -> Work:
    return Work(TMA, what, j, None if j is None else j % plan.stages, plan.load, _full(what, j))


def _product(plan: WarpgroupPlan, group: int, what: str, j: int) -> Work:
    return Work(TENSOR_CORES, what, j, j % plan.stages, plan.product, _done(group, what, j))


def _exponentials(plan: WarpgroupPlan, group: int, j: int) -> Work:
    return Work(EXPONENTIALS, "P", j, None, plan.softmax, _done(group, "P", j))


def _full(what: str, j: int | None) -> str:
    return f"{what}{'' if j is None else j} full"


def _done(group: int, what: str, j: int) -> str:
    return f"{what}{j} of WG{group}"


def _released(group: int, what: str, j: int) -> str:
    return f"{what}{j} released by WG{group}"


def _turn(group: int, turn: int) -> str:
    return f"turn {turn} of WG{group}"


def _next_turn(plan: WarpgroupPlan, group: int, turn: int) -> str:
    """The next turn: that of the next warpgroup, or of the first one again."""
    return _turn(group + 1, turn) if group < plan.consumers else _turn(1, turn + 1)
