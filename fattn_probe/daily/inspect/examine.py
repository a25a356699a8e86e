"""Examine cases: the facts of each, and the extras that the user requested (values, breakpoints, a trace, a NaN)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fattn_probe.base.activity import Step, quiet
from fattn_probe.base.arrays import Bytes
from fattn_probe.base.errors import InputError, LostError
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cases.scenario.schema import TracePlace
from fattn_probe.daily.inspect.breakpoints import BlockWatch, WatchResult, watch
from fattn_probe.daily.inspect.facts import Facts, Value
from fattn_probe.daily.inspect.inspector import Ended, Inspection, Inspector
from fattn_probe.daily.inspect.tensors import Slice, TensorReading, read_tensors
from fattn_probe.llama.build import RUNNER, TEST_BACKEND_OPS
from fattn_probe.machine.run.capture import Capture
from fattn_probe.machine.run.command import Work, describe

if TYPE_CHECKING:  # a trace's modules take 0.1 s to import, and most inspections trace nothing
    from fattn_probe.daily.inspect.trace.find_nan import FirstNotFinite
    from fattn_probe.daily.inspect.trace.reference import JudgedTrace
    from fattn_probe.verdict.judge.judgement import Judgement


@dataclass(frozen=True)
class Extras:
    """Data to read in addition to the facts."""

    values: tuple[Slice, ...] = ()
    captures: Path | None = None
    watch: BlockWatch | None = None
    traced: frozenset[str] = frozenset()
    """Names of the cases to trace, each with the warp of its `inspect.trace`."""
    npz: Path | None = None
    """A file for the registers of all warps of the traced block."""
    find_nan: bool = False


@dataclass(frozen=True)
class Examined:
    """An inspection with its extras; an extra that the user did not request is None."""

    inspection: Inspection
    expect: Mapping[str, Value] = field(default_factory=dict)
    tensors: TensorReading | None = None
    watched: WatchResult | None = None
    trace: "JudgedTrace | None" = None
    lane: int | None = None
    output: "Judgement | None" = None
    """The verdict on the whole output of a traced case."""
    nan: "FirstNotFinite | None" = None
    nan_searched: bool = False

    def ended(self, how: Ended) -> "Examined":
        """A copy for a program that ended early in a later run."""
        return replace(self, inspection=replace(self.inspection, result=how))

    @property
    def output_fails(self) -> bool:
        """Whether the output of a traced case is wrong."""
        return self.output is not None and self.output.status == "fail"

    @property
    def has_extras(self) -> bool:
        """Whether any extra was read."""
        return bool(self.tensors or self.watched or self.trace or self.nan_searched)

    @property
    def facts(self) -> Facts | None:
        """The facts; None if the program did not reach its kernel."""
        return self.inspection.result if isinstance(self.inspection.result, Facts) else None

    @property
    def label(self) -> str:
        """`gqa on sim:h200`."""
        return f"{self.inspection.name} on {self.inspection.on}"


@dataclass(frozen=True)
class Examiner:
    """Reads the facts of each case on each target, then its extras, each in its own debugger session."""

    inspector: Inspector
    extras: Extras
    step: Step = quiet
    """Called with the current step in words."""

    def examine_all(self, work: Work) -> Iterator[Examined]:
        """Examine each case on its targets."""
        for case, targets in work:
            inputs = make_inputs(case)
            for target in targets:
                if target.engine == "cpu":
                    raise InputError("inspect --on cpu: ggml's CPU backend launches no kernels; choose sim:ID or gpu")
                yield self.examine(case, inputs, target)

    def examine(self, case: Case, inputs: dict[str, Bytes], target: Target) -> Examined:
        """Examine one case on one target; an op without a kernel has no extras."""
        label = f"{case.name} on {target}"
        self.step(f"{label}: reading the dispatch, the launch and the blocks")
        examined = Examined(self.inspector.inspect(case, inputs, target), case.expect)
        if examined.facts is None:
            return examined
        if self.extras.values or self.extras.captures:
            self.step(f"{label}: reading the tensors in memory")
            values, captures = self.extras.values, self.extras.captures
            read = read_tensors(self.inspector, case, inputs, target, wanted=values, captures=captures)
            if not isinstance(read, TensorReading):
                return examined.ended(read)
            examined = replace(examined, tensors=read)
        if self.extras.watch is not None:
            self.step(f"{label}: running to the breakpoints")
            stops = watch(self.inspector, case, inputs, target, self.extras.watch)
            if not isinstance(stops, WatchResult):
                return examined.ended(stops)
            examined = replace(examined, watched=stops)
        if case.name in self.extras.traced or self.extras.find_nan:
            return self._into_the_kernel(case, inputs, target, examined)
        return examined

    def _into_the_kernel(self, case: Case, inputs: dict[str, Bytes], target: Target, examined: Examined) -> Examined:
        """Trace a warp and search for the first NaN or infinity, if requested."""
        from fattn_probe.daily.inspect.trace.archive import write_arrays
        from fattn_probe.daily.inspect.trace.tracer import Tracer
        from fattn_probe.verdict.judge.cases import judge_case

        tracer = Tracer(self.inspector, case, inputs, target, examined.facts or Facts({}))
        if case.name in self.extras.traced:
            at = case.inspect.trace or TracePlace()
            self.step(f"{case.name} on {target}: judging the output")
            output = judge_case(self.inspector.session, case, target)
            self.step(f"{case.name} on {target}: tracing a warp, and a row of the output")
            trace = tracer.follow(output, case.inspect.trace)
            examined = replace(examined, trace=trace, lane=at.lane, output=output)
            if self.extras.npz is not None:
                self.step(f"{case.name} on {target}: reading the registers of all warps of block {at.block}")
                write_arrays(tracer.arrays(at.block, at.kb0), self.extras.npz)
        if self.extras.find_nan:
            self.step(f"{case.name} on {target}: searching for the first NaN or infinity")
            ran = self.inspector.session.capture(case, inputs, target)
            if not isinstance(ran, Capture):
                raise LostError(f"{case.name} on {target}: {describe(ran)}")
            examined = replace(examined, nan=tracer.find_not_finite(ran.dst), nan_searched=True)
        return examined


def inspect_upstream_on(
    inspector: Inspector, program: str, only: str, targets: Sequence[Target], step: Step = quiet
) -> Iterator[Examined]:
    """Inspect one of upstream's own cases on targets."""
    from fattn_probe.daily.inspect.upstream import inspect_upstream  # imports the room that runs upstream's program

    if program != TEST_BACKEND_OPS:
        raise InputError(f"--program {program!r}: allowed: {RUNNER}, {TEST_BACKEND_OPS}")
    for target in targets:
        step(f"{program} on {target}, under the debugger")
        yield Examined(inspect_upstream(inspector, only, target))
