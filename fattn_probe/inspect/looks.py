"""What is asked of an inspection besides the facts, and what was seen."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fattn_probe.arrays import Bytes
from fattn_probe.build import RUNNER, TEST_BACKEND_OPS
from fattn_probe.device import Target
from fattn_probe.errors import InputError, LostError
from fattn_probe.inspect.breakpoints import Watch, WatchResult, watch
from fattn_probe.inspect.facts import Facts, Value
from fattn_probe.inspect.inspector import Ended, Inspection, Inspector
from fattn_probe.inspect.tensor_values import Slice
from fattn_probe.inspect.tensors import TensorReading, read_tensors
from fattn_probe.inspect.trace.archive import write_arrays
from fattn_probe.inspect.trace.find_nan import NotFinite
from fattn_probe.inspect.trace.reference import Trace
from fattn_probe.inspect.trace.tracer import Tracer
from fattn_probe.inspect.upstream import inspect_upstream
from fattn_probe.run.capture import Capture
from fattn_probe.run.command import Work, describe
from fattn_probe.scenario import Case, make_inputs
from fattn_probe.scenario.schema import Trace as Place


@dataclass(frozen=True)
class Looks:
    """What is looked at besides the facts."""

    values: tuple[Slice, ...] = ()
    captures: Path | None = None
    watch: Watch | None = None
    traced: frozenset[str] = frozenset()
    """Names of the cases of which a warp is followed, the one of their `inspect.trace`."""
    npz: Path | None = None
    """A file for the registers of all warps of the traced block."""
    find_nan: bool = False


@dataclass(frozen=True)
class Seen:
    """An inspection, and what was looked at besides."""

    inspection: Inspection
    expect: Mapping[str, Value] = field(default_factory=dict)
    tensors: TensorReading | None = None
    watched: WatchResult | None = None
    trace: Trace | None = None
    lane: int | None = None
    nan: NotFinite | None = None
    hunted: bool = False

    def ended(self, how: Ended) -> "Seen":
        """The same, of a program that did not run to its end when it was looked at again."""
        return replace(self, inspection=replace(self.inspection, result=how))

    @property
    def extras(self) -> bool:
        """Whether anything was looked at besides the facts."""
        return bool(self.tensors or self.watched or self.trace or self.hunted)

    @property
    def facts(self) -> Facts | None:
        """The facts, if the program got to its kernel."""
        return self.inspection.result if isinstance(self.inspection.result, Facts) else None

    @property
    def where(self) -> str:
        """`gqa on sim:h200`."""
        return f"{self.inspection.name} on {self.inspection.on}"


@dataclass(frozen=True)
class Looker:
    """Looks at cases on targets: the facts of each, then what else was asked for."""

    inspector: Inspector
    looks: Looks

    def look_at(self, work: Work) -> Iterator[Seen]:
        """Each case on its targets."""
        for case, targets in work:
            inputs = make_inputs(case)
            for target in targets:
                if target.engine == "cpu":
                    raise InputError("inspect --on cpu: ggml's CPU backend launches no kernels; choose sim:ID or gpu")
                yield self.look(case, inputs, target)

    def look(self, case: Case, inputs: dict[str, Bytes], target: Target) -> Seen:
        """One case on one target; nothing besides the facts if it has no kernel."""
        seen = Seen(self.inspector.inspect(case, inputs, target), case.expect)
        if seen.facts is None:
            return seen
        if self.looks.values or self.looks.captures:
            values, captures = self.looks.values, self.looks.captures
            read = read_tensors(self.inspector, case, inputs, target, wanted=values, captures=captures)
            if not isinstance(read, TensorReading):
                return seen.ended(read)
            seen = replace(seen, tensors=read)
        if self.looks.watch is not None:
            stops = watch(self.inspector, case, inputs, target, self.looks.watch)
            if not isinstance(stops, WatchResult):
                return seen.ended(stops)
            seen = replace(seen, watched=stops)
        return self._into_the_kernel(Tracer(self.inspector, case, inputs, target, seen.facts or Facts({})), seen)

    def _into_the_kernel(self, tracer: Tracer, seen: Seen) -> Seen:
        """A warp followed, and where the first NaN or infinity comes from, as far as they were asked for."""
        case, target = tracer.case, tracer.target
        if case.name in self.looks.traced:
            at = case.inspect.trace or Place()
            seen = replace(seen, trace=tracer.trace(at.block, at.warp, at.kb0), lane=at.lane)
            if self.looks.npz is not None:
                write_arrays(tracer.arrays(at.block, at.kb0), self.looks.npz)
        if self.looks.find_nan:
            ran = self.inspector.session.capture(case, tracer.inputs, target)
            if not isinstance(ran, Capture):
                raise LostError(f"{case.name} on {target}: {describe(ran)}")
            seen = replace(seen, nan=tracer.find_not_finite(ran.dst), hunted=True)
        return seen


def inspect_upstream_on(inspector: Inspector, program: str, only: str, targets: Sequence[Target]) -> Iterator[Seen]:
    """Inspect a case of upstream's on targets."""
    if program != TEST_BACKEND_OPS:
        raise InputError(f"--program {program!r}: allowed: {RUNNER}, {TEST_BACKEND_OPS}")
    for target in targets:
        yield Seen(inspect_upstream(inspector, only, target))
