"""Threads that compile the builds of a run, in growing waves of kernels, and report which cases can be judged."""

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from fattn_probe.base.errors import BuildError, LostError
from fattn_probe.base.host import cores
from fattn_probe.base.process import log
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.regress.pool import Growth, Job
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.verdicts import Verdicts
from fattn_probe.llama.build import RUNNER, BuildRequest
from fattn_probe.llama.build.ninja import JobSlots, Progress, default_jobs
from fattn_probe.llama.build.sources import common_files, launching_files
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.llama.source import Tree
from fattn_probe.machine.run.base import base_of
from fattn_probe.machine.run.executed import ExecutedCode
from fattn_probe.machine.run.prepare import (
    KernelsByOp,
    compiled_names,
    files_of_base,
    kernels_of,
    launching_by_size,
    missing_files,
    required_kernels,
    required_sources,
)
from fattn_probe.machine.run.session import Session
from fattn_probe.machine.run.simulator import unpacked_tables

NICE = 3
"""Nice value of the compilers: judging comes first, since any case that is ready may be the first failure."""

MOST_IN_A_WAVE, WHOLE = 32, 40
"""Largest wave while more than `WHOLE` kernels are left; the rest form one wave, since another costs a link step."""
HOST, UNKNOWN = 4, 64
"""Cost of a build's host code, and extra cost while its kernels are unknown, in units of one kernel's cost."""
LINKS = 3
"""Number of final steps in a build's first compilation that need all objects: those for the stubs."""
FADING = 0.998
"""The factor by which an item's time counts less in estimates with each further item."""
LAST = 10**9
"""A place in the order after all others: more than the number of cases in any suite."""


class StoppedError(Exception):
    """The run ended while kernels were being compiled."""


@dataclass(frozen=True)
class Lane:
    """Cases judged in the same way on one target; the `ordered` ones also run in `orders` random orders.

    `on` is the entry and the target in words. Verdicts are reused from `verdicts`, and stored there.
    """

    on: str
    session: Session
    job: Job
    cases: Sequence[Case]
    orders: int = 0
    ordered: Sequence[Case] = ()
    verdicts: Verdicts | None = None


@dataclass(frozen=True)
class BesideBase:
    """The base's launches for a lane's cases, by case name; `words` name the base."""

    words: str
    launches: Mapping[str, tuple[LaunchRecord, ...]]


Found = tuple[int, Case | Result | BesideBase] | BaseException | None
"""News about a lane, with its number: a case that can be judged, a lost case, or the base's launches.

An exception ends the run; None marks the end of a thread.
"""


@dataclass(frozen=True)
class Likely:
    """The order of the cases by their likelihood of showing a change, and the kernel families that it affects.

    A case is identified by its entry with its target (`few-sms on sim:h200-5`) and its name. Empty `families`: all are
    affected. Before the dry runs, ops are assumed to launch the same kernels as with the `base` tree.
    """

    places: Mapping[tuple[str, str], int] = field(default_factory=dict)
    families: Sequence[str] = ()
    base: Tree | None = None

    def place(self, on: str, case: Case, kernels: Iterable[str]) -> int:
        """A case's place in the order: cases in `places`, then other cases with an affected kernel, then the rest."""
        concerned = any(not self.families or kernel.partition(" ")[0] in self.families for kernel in kernels)
        return self.places.get((on, case.name), LAST - concerned)


@dataclass
class GrowingBuild:
    """A build for some lanes (by number); `kernels` has all kernels that it will contain, `has` the compiled ones.

    `names` has the kernels of each lane's ops. At first these are the kernels needed before the last edit, a guess
    except for the ops in `certain`; after the dry runs, `exact` is True. `failed` has the compiler's messages for the
    kernels that do not compile, `suspects` the kernels of a failed wave. `code` is the build's code, None if unknown.
    """

    lanes: list[int]
    kernels: dict[str, Any] = field(default_factory=dict)
    names: dict[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)
    certain: set[tuple[int, str]] = field(default_factory=set)
    waiting: list[tuple[int, Case]] = field(default_factory=list)
    growth: Growth = field(default_factory=Growth)
    has: set[str] = field(default_factory=set)
    failed: dict[str, BuildError] = field(default_factory=dict)
    suspects: list[str] = field(default_factory=list)
    broken: BuildError | None = None
    exact: bool = False
    busy: bool = False
    code: ExecutedCode | None = None

    @property
    def pending(self) -> list[str]:
        """The kernels that are neither compiled nor known to fail."""
        return [name for name in self.kernels if name not in self.has and name not in self.failed]

    @property
    def done(self) -> bool:
        """Whether nothing is left to compile."""
        return self.broken is not None or (self.exact and not self.pending)

    def needs(self, number: int, case: Case) -> tuple[str, ...]:
        """The kernels of a lane's case that are known so far."""
        return self.names.get((number, case.op.digest), ())

    def wave(self, place: Callable[[int, Case, Iterable[str]], int], jobs: int) -> tuple[int, list[str]]:
        """The kernels to compile next: those of the cases most likely to show a change, most used first.

        Also returns the `place` of the first such case. Waves are small at first, and while their cases are likely to
        show a change, because each case waits for its whole wave; later waves are large, as each costs a link step.
        """
        if self.suspects:
            return 0, self.suspects[:1] if self.growth.times else []
        used, places = Counter[str](), dict[str, int]()
        for number, case in self.waiting:
            kernels = self.needs(number, case)
            first = place(number, case, kernels)
            used.update(kernels)
            places |= {name: min(first, places.get(name, LAST)) for name in kernels}
        ordered = sorted(self.pending, key=lambda name: (places.get(name, LAST), -used[name], name))
        soon = not self.growth.times or places.get(next(iter(ordered), ""), LAST) < LAST - 1
        large = MOST_IN_A_WAVE if len(ordered) > WHOLE else WHOLE
        wave = ordered[: min(jobs << self.growth.times, MOST_IN_A_WAVE) if soon else large]
        return min((places.get(name, LAST) for name in wave), default=LAST), wave

    def worth(self, place: Callable[[int, Case, Iterable[str]], int], jobs: int) -> tuple[int, float]:
        """Rank the next step by its likelihood of showing a change, then by the cases it makes ready per kernel."""
        first, wave = self.wave(place, jobs)
        if not wave:
            return -first, len(self.waiting) / (HOST if self.growth.times else HOST + UNKNOWN)
        there = self.has.union(wave)
        ready = sum(there.issuperset(self.needs(number, case)) for number, case in self.waiting)
        return -first, ready / (len(wave) + (0 if self.growth.times else HOST))


@dataclass
class Rate:
    """The core seconds of the last few hundred items, used to estimate the time for other items.

    Long cases run first, so the average over all items would be too long for those left.
    """

    number: float = 0.0
    seconds: float = 0.0

    def add(self, seconds: float, number: int = 1) -> None:
        """Add the time of some items; older ones count less and less."""
        share = FADING**number
        self.number, self.seconds = share * self.number + number, share * self.seconds + seconds

    def of(self, number: int) -> float | None:
        """Estimate the core seconds of `number` items; None without data."""
        return 0.0 if not number else number * self.seconds / self.number if self.number else None


class Compilers:
    """Threads that compile the lanes' builds, and then find the base's launches.

    `found` is the queue to the main thread, `judging` the number of cases that share the cores with the compilers.
    """

    def __init__(self, lanes: Sequence[Lane], likely: Likely) -> None:
        """Determine which lanes share a build, and which kernels their cases are likely to need."""
        self.lanes, self.likely, self.found = lanes, likely, deque[Found]()
        self.judging, self.stopped, self.rate = 0, False, Rate()
        self.cores, self.slots = cores(), JobSlots(default_jobs(), self._begin)  # cores() takes a millisecond
        self._lock, self._first, self._here = threading.RLock(), threading.Lock(), threading.local()
        self._prepared, self._others = threading.Event(), threading.Event()
        by_request: dict[BuildRequest | int, GrowingBuild] = {}
        for number, lane in enumerate(self.lanes):
            options, target = lane.session.options, lane.job.target
            if options.build is not None or options.tree is None:
                self.found.extend((number, case) for case in lane.cases)
            elif lane.cases:
                key = number if target.engine == "cpu" else lane.session.request_for(target)
                build = by_request.setdefault(key, GrowingBuild([]))
                build.lanes.append(number)
                build.waiting += [(number, case) for case in lane.cases]
                certain, known = KernelsByOp.of(options, target).read(), [KernelsByOp.similar(options, target).read()]
                if self.likely.base is not None:
                    base = replace(options, tree=self.likely.base, patches=())
                    known.insert(0, KernelsByOp.of(base, target).read())
                names = {digest: kernels for one in (*known, certain) for digest, kernels in one.items()}
                kernels = kernels_of(lane.session, target, [case.op.digest for case in lane.cases], names)
                build.kernels |= {kernel.name: kernel for kernel in kernels}
                names = compiled_names(lane.session, target, names)
                build.names |= {(number, digest): kernels for digest, kernels in names.items()}
                build.certain |= {(number, digest) for digest in certain}
        self.builds = list(by_request.values())
        self._bases = iter([n for n, lane in enumerate(self.lanes) if lane.job.target.engine == "sim" and lane.cases])
        # A build's link steps, dry runs and largest files keep only one core busy, so other builds use the rest.
        self.threads = max(1, min(self.cores, len(self.builds)))

    def stop(self) -> None:
        """Tell all threads to end soon."""
        self.stopped = True
        self._let_others()
        self.slots.give(self.threads)  # so that no thread waits for a slot

    def work(self, news: Any) -> None:  # noqa: ANN401 (a connection)
        """Do the work of one thread; a message to `news` announces new entries in `found`."""
        self._news = news
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)  # applies to this thread and its programs
        try:
            if any(lane.job.target.engine == "sim" for lane in self.lanes):
                unpacked_tables()  # with a full disk, the run ends here instead of losing every case
            self._here.late = not self._first.acquire(blocking=False)  # never released, so only one thread is first
            if not self._here.late:
                self.slots.take()
                try:
                    self._step()
                finally:
                    self._let_others()
            else:
                self._prepared.wait()
            while self._step():
                pass
            self._wait_for_first()
            for number in self._bases:  # the threads share the iterator
                self._compare_with_base(number)
            self.slots.give()
        except StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001 (raised in the main thread)
            self._tell(error)
        finally:
            self._tell(None)

    def _step(self) -> bool:
        """Do the most valuable next step of any build; returns False if no build is left for this thread."""
        with self._lock:
            free = [build for build in self.builds if not build.done and not build.busy]
            if self.stopped or not free:
                return False
            build = max(free, key=lambda build: build.worth(self.place, self.jobs))
            build.busy = True
        try:
            self._grow(build)
            self._wait_for_first()  # not yet done if nothing was compiled
            self._read_code(build)
            self._settle(build)
        finally:
            build.busy = False
        return True

    def _let_others(self) -> None:
        """Let the other threads prepare builds, and compile."""
        self._prepared.set()
        self._others.set()

    def _begin(self) -> None:
        """Called once a build's files are written: lets other threads write files; waits until this one may compile."""
        self._prepared.set()
        self._wait_for_first()
        self._here.began = time.monotonic()

    def _wait_for_first(self) -> None:
        """In each thread except the first, wait (once) for the first build's compilation, then for a slot."""
        if self._here.late:
            self._others.wait()
            self.slots.take()
            self._here.late = False

    def _tell(self, *found: Found) -> None:
        """Pass news to the main thread."""
        with self._lock, suppress(OSError):  # the main thread may have ended
            self.found.extend(found)
            self._news.send_bytes(b"news")

    def build_of(self, number: int) -> GrowingBuild:
        """The build for a lane; an empty one if the user gave a build."""
        return next((build for build in self.builds if number in build.lanes), GrowingBuild([]))

    def place(self, number: int, case: Case, kernels: Iterable[str]) -> int:
        """The place of a lane's case in the order of likelihood."""
        return self.likely.place(self.lanes[number].on, case, kernels)

    @property
    def jobs(self) -> int:
        """The number of parallel jobs of one build, if all busy builds share the slots equally."""
        return -(-self.slots.number // max(1, sum(build.busy for build in self.builds)))

    @property
    def share(self) -> float:
        """The fraction of a core that each running job or case gets."""
        busy = self.judging + sum(build.busy for build in self.builds) * self.jobs
        return min(1.0, self.cores / max(1, busy))

    def _grow(self, build: GrowingBuild) -> None:
        """Do the next step of a build: compile a wave of kernels, the first with the host code, or do the dry runs."""
        lanes = [self.lanes[number] for number in build.lanes]
        first, target = lanes[0], lanes[0].job.target
        session = Session(first.session.options, self._report, first.session.builds)
        if target.engine == "cpu":
            self._wait_for_first()
            made, build.exact = session.build_for(target), True
            build.growth = Growth(1, {key: made for key in session.builds})
            return
        if build.growth.times and not build.exact:
            self._wait_for_first()
            self._find_names(build, session)
            return
        _, wave = build.wave(self.place, self.jobs)
        sources = self._sources(build, session, wave)
        try:
            session.add_kernels(target, [build.kernels[name] for name in wave], sources=sources, jobs=self.slots)
        except BuildError as error:
            if self.stopped:
                raise StoppedError from None
            with self._lock:  # compile the wave's kernels one by one; if there is no wave, the host code failed
                if not wave:
                    build.broken = error
                elif len(wave) == 1 and build.growth.times:
                    build.failed[wave[0]] = error
                    build.suspects = [name for name in build.suspects if name != wave[0]]
                else:
                    build.suspects = list(wave)
            return
        with self._lock:
            made = session.builds[f"{target}/{RUNNER}"]
            contents = made.manifest.contents
            build.has |= set(build.kernels if contents.full else contents.kernels)
            build.suspects = [name for name in build.suspects if name not in wave]
            builds = {f"{lane.job.target}/{RUNNER}": made for lane in lanes}
            for lane in lanes:
                lane.session.builds.update(builds)
            if wave and made.objects is not None:  # something was compiled
                self.rate.add((time.monotonic() - self._here.began) * self.jobs * self.share, len(wave))
            build.growth = Growth(build.growth.times + 1, builds)

    def _sources(self, build: GrowingBuild, session: Session, wave: Sequence[str]) -> tuple[str, ...]:
        """The other files that a build needs together with a wave of kernels."""
        lanes = [self.lanes[number] for number in build.lanes]
        cases, target = [case for lane in lanes for case in lane.cases], lanes[0].job.target
        sources = required_sources(cases)
        if not wave:  # no kernel is known: besides the host code, compile what the dry runs need
            sources += launching_by_size(session, cases, target)
        elif not build.growth.times and self.likely.base is not None:
            sources += files_of_base(session, self.likely.base, target)
        # Use the files common to all kernels: the files common to one wave's kernels differ from wave to wave.
        if wave and build.exact:
            sources += missing_files(launching_files, session, build.kernels.values(), target)
        if wave and (build.exact or self.likely.families):  # otherwise an earlier run has compiled these files
            sources += missing_files(common_files, session, build.kernels.values(), target)
        return sources

    def _report(self, progress: Progress) -> None:
        """Stop compiling if the run has ended; start the other builds when only the first build's link steps are left.

        The first build is most likely to show an edit's effect, so it gets all cores; others reuse its host objects.
        """
        if self.stopped:
            raise StoppedError
        if progress.total - progress.done <= LINKS:
            self._others.set()

    def _find_names(self, build: GrowingBuild, session: Session) -> None:
        """Find the kernels that the cases really need, which replace the guessed ones."""
        kernels: dict[str, Any] = {}
        names: dict[tuple[int, str], tuple[str, ...]] = {}
        for number in build.lanes:
            lane, target = self.lanes[number], self.lanes[number].job.target
            kernels |= {kernel.name: kernel for kernel in required_kernels(session, lane.cases, target)}
            known = compiled_names(session, target, KernelsByOp.of(session.options, target).read())
            names |= {(number, digest): words for digest, words in known.items()}
        with self._lock:
            build.kernels, build.names, build.exact = kernels, names, True
            build.suspects = [name for name in build.suspects if name in kernels]

    def _read_code(self, build: GrowingBuild) -> None:
        """Determine which code the build's runs execute, if verdicts may be reused."""
        made = next(iter(build.growth.builds.values()), None)
        tree = self.lanes[build.lanes[0]].session.options.tree
        if made is not None and tree is not None and any(self.lanes[number].verdicts for number in build.lanes):
            try:
                build.code = ExecutedCode.of(made.folder, tree, build.code)
            except ValueError as error:
                build.code = None
                log.info("no verdicts from earlier runs are reused: %s", error)

    def _settle(self, build: GrowingBuild) -> None:
        """Report cases as ready if their kernels are compiled, and as lost if their kernels do not compile.

        A case is not judged again if its dry run confirms its kernels, and the code that it executes is unchanged since
        an earlier run. After the last kernel, no case waits: if a kernel is still missing, the case's run compiles it.
        """
        found: list[tuple[int, Case | Result]] = []
        with self._lock:
            waiting, build.waiting = build.waiting, []
            for number, case in waiting:
                known, kernels = build.exact or (number, case.op.digest) in build.names, build.needs(number, case)
                error = build.broken or next((build.failed[name] for name in kernels if name in build.failed), None)
                if error is not None:
                    found.append((number, Result.lost(case, str(error))))
                elif build.done or (build.growth.times and known and build.has.issuperset(kernels)):
                    found.append((number, case))
                else:
                    build.waiting.append((number, case))
        told = list[Found]()
        for number, one in found:
            verdicts = self.lanes[number].verdicts
            if isinstance(one, Case) and verdicts is not None and build.code is not None:
                taken = verdicts.taken(one, build.code, build.needs(number, one))
                if taken and not (build.exact or (number, one.op.digest) in build.certain):
                    build.waiting.append((number, one))
                    continue
                one = taken or one  # noqa: PLW2901
            told.append((number, one))
        self._tell(*told)

    def _compare_with_base(self, number: int) -> None:
        """Find the base's launches for a lane's cases; an unchanged release has no base."""
        lane = self.lanes[number]
        base = base_of(lane.session.options)
        if base is None or self.stopped:
            return
        try:
            launches = base.launches(lane.cases, lane.job.target, self._report)
        except (BuildError, LostError) as error:
            log.warning("launches not compared with those of %s: %s", base.words, error)
            return
        by_name = {case.name: launches[case.op.digest] for case in lane.cases if case.op.digest in launches}
        self._tell((number, BesideBase(base.words, by_name)))

    def __str__(self) -> str:
        """`compiled 12 of 57 kernels` (`57 or more` before the dry runs); empty if everything is compiled."""
        if all(build.done for build in self.builds):
            return ""
        there = sum(len(build.kernels) - len(build.pending) for build in self.builds)
        every, more = sum(len(build.kernels) for build in self.builds), not all(build.exact for build in self.builds)
        return f"compiled {there} of {every}{' or more' if more else ''} kernels"

    @property
    def seconds_left(self) -> float | None:
        """The core seconds needed to compile the rest; None without data."""
        with self._lock:
            if all(build.done for build in self.builds):
                return 0.0
            host = sum(HOST for build in self.builds if not build.growth.times and not build.done)
            return self.rate.of(host + sum(len(build.pending) for build in self.builds))
