"""A discrete-event model: actors run their programs in order, and their work shares the units of an SM.

A slot is the unit of time. A unit serves the oldest work of each actor; two actors at once get half of it each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    """Start work on a unit and continue; `done` is set when it ends.

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
    """All events in order of their starts; `deadlock`: what each actor that cannot finish waits for."""

    events: tuple[Event, ...]
    deadlock: Mapping[str, tuple[str, ...]]

    @property
    def slots(self) -> int:
        """The number of slots until the last event ends."""
        return max((event.end for event in self.events), default=0)


@dataclass
class _Started:
    """Work queued on a unit; it starts when the actor's older work there is done."""

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
        """The signals that it waits for now."""
        step = self.program[self.at] if self.at < len(self.program) else None
        return tuple(signal for signal in step.signals if signal not in told) if isinstance(step, Wait) else ()

    def advance(self, told: set[str]) -> bool:
        """Run to the next signal that is not set; whether anything was done."""
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
    """Let every unit work for a slot; the events that end with it."""
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
