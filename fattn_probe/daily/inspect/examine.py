"""Examine cases: the facts of each, and the extras that the user asked for (values, breakpoints, a trace, NaNs).

Breakpoints stop at lines that match a pattern, and show expressions there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from fattn_probe.base.activity import Step, quiet
from fattn_probe.base.arrays import Bytes
from fattn_probe.base.errors import InputError, LostError
from fattn_probe.base.figures import first_of
from fattn_probe.base.regex import bounded, compiled
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cases.scenario.schema import TracePlace
from fattn_probe.daily.inspect.anchors import matching, overlay_lines
from fattn_probe.daily.inspect.facts import Facts, Value
from fattn_probe.daily.inspect.inspector import Ended, Inspection, Inspector, wave_of
from fattn_probe.daily.inspect.procedures.warp import fiber
from fattn_probe.daily.inspect.tensors import Slice, TensorReading, read_tensors
from fattn_probe.llama.build import RUNNER, TEST_BACKEND_OPS
from fattn_probe.llama.source.features import CUDA
from fattn_probe.machine.run.capture import Capture
from fattn_probe.machine.run.command import Work, describe

if TYPE_CHECKING:  # a trace's modules take 0.1 s to import, and most inspections trace nothing
    from fattn_probe.daily.inspect.trace.find_nan import FirstNotFinite
    from fattn_probe.daily.inspect.trace.reference import JudgedTrace
    from fattn_probe.verdict.judge.judgement import Judgement


SHOWN = 12  # the largest number of names that a refusal lists
THREAD = "simt::self == 0 || ({} == {} && {} == {})"


@dataclass(frozen=True)
class BlockWatch:
    """`--break 'PATTERN@FILE' --print EXPR`: expressions to evaluate at matching lines, at most `stops` times."""

    pattern: str
    file: str
    expressions: tuple[str, ...]
    stops: int = 1


@dataclass(frozen=True)
class BreakRefusal:
    """The reason why an expression has no value, in the debugger's words.

    For an unknown name, `names` are the arguments and locals in scope, and `near` those with a similar spelling.
    """

    reason: str
    near: tuple[str, ...]
    names: tuple[str, ...]

    def __str__(self) -> str:
        reason = f"{self.reason.rstrip('.')}."
        if self.near:
            return f"{reason} Similar names in scope: {', '.join(self.near)}"
        return f"{reason} In scope: {first_of(self.names, SHOWN)}" if self.names else reason


@dataclass(frozen=True)
class Watched:
    """One stop: its place, and each expression's value as the debugger prints it (None: it has no value)."""

    function: str
    file: str
    line: int
    values: Mapping[str, str | None]
    refusals: Mapping[str, BreakRefusal]

    @property
    def place(self) -> str:
        """`flash_attn_ext_f16_iter at fattn-mma-f16.cuh:671`, without the namespace that nvcc adds."""
        name = self.function.partition("<")[0].rpartition("::")[2]
        return f"{name} at {PurePosixPath(self.file).name}:{self.line}"


@dataclass(frozen=True)
class WatchResult:
    """The stops; `why` is the reason if the program ended before all requested stops, otherwise empty."""

    stops: tuple[Watched, ...]
    why: str

    @property
    def never_read(self) -> Mapping[str, tuple[Watched, BreakRefusal]]:
        """Expressions that had no value at any stop, each with its first stop and the refusal there."""
        read = {text for stop in self.stops for text, value in stop.values.items() if value is not None}
        first = {text: (stop, why) for stop in reversed(self.stops) for text, why in stop.refusals.items()}
        return {text: found for text, found in first.items() if text not in read}


def watch_of(text: str, expressions: Sequence[str], stops: int) -> BlockWatch | None:
    """The watch described by `--break PATTERN@FILE`, `--print` and `--stops`; raises InputError if they are invalid.

    PATTERN is a regular expression, FILE a file of ggml-cuda/. `--print` needs `--break`.
    """
    if expressions and not text:
        raise InputError(f"--print {expressions[0]!r} needs --break 'PATTERN@FILE', the line to print it at")
    if not text:
        return None
    pattern, _, file = text.rpartition("@")
    if not pattern or "/" in file:
        raise InputError(f"--break {text!r} is not PATTERN@FILE, such as 'float KQ_max_new@fattn-mma-f16.cuh'")
    compiled(pattern, "--break")
    return BlockWatch(pattern, file, tuple(expressions), stops)


def watch(
    inspector: Inspector, case: Case, inputs: Mapping[str, Bytes], target: Target, wanted: BlockWatch
) -> WatchResult | Ended:
    """Stop at the lines of `wanted`; in a kernel, only in the thread that the case's `inspect.trace` names."""
    at = case.inspect.trace or TracePlace()
    path = inspector.source(inspector.session.build_for(target, RUNNER)) / CUDA / wanted.file
    if not path.is_file():
        raise InputError(f"--break: this source has no {CUDA / wanted.file}")
    with bounded(wanted.pattern, "--break"):
        lines = list(matching(overlay_lines(path), wanted.pattern))
    if not lines:
        raise InputError(f"--break: no line of {CUDA / wanted.file} matches {wanted.pattern!r}")
    simulated = target.engine == "sim"
    warp, lane = fiber(wave_of(target))
    plan = {
        "locations": [f"{wanted.file}:{line}" for line in lines],
        "expressions": list(wanted.expressions),
        "stops": wanted.stops,
        "condition": THREAD.format(warp, at.warp, lane, at.lane or 0) if simulated else "",
        "at_launch": [f"set var simt::focus.block = {at.block}"] if simulated else [],
        "thread": [] if simulated else [at.block, at.warp, at.lane or 0],
    }
    with inspector.place(case, inputs) as folder:
        found = inspector.procedure("fattn_probe.daily.inspect.procedures.op:watch", plan, folder, target)
    if not isinstance(found, dict):
        return found
    return TypeAdapter(WatchResult).validate_python(found)


@dataclass(frozen=True)
class Extras:
    """Data to read in addition to the facts."""

    values: tuple[Slice, ...] = ()
    captures: Path | None = None
    watch: BlockWatch | None = None
    traced: frozenset[str] = frozenset()
    """Names of the cases to trace, each at the warp that its `inspect.trace` gives."""
    npz: Path | None = None
    """The file to which the registers of all warps of the traced block are written."""
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
        """A copy whose result says that the program ended early in a later run."""
        return replace(self, inspection=replace(self.inspection, result=how))

    @property
    def output_fails(self) -> bool:
        """Whether the output of a traced case is wrong."""
        return self.output is not None and self.output.status == "fail"

    @property
    def facts(self) -> Facts | None:
        """The facts; None if the program did not reach its kernel."""
        return self.inspection.result if isinstance(self.inspection.result, Facts) else None

    @property
    def label(self) -> str:
        """The case and target: `gqa on sim:h200`."""
        return f"{self.inspection.name} on {self.inspection.on}"


@dataclass(frozen=True)
class Examiner:
    """Reads the facts of each case on each target, then its extras, each in its own debugger session."""

    inspector: Inspector
    extras: Extras
    step: Step = quiet
    """A callback that receives the current step in words."""

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
        from fattn_probe.daily.inspect.trace.fragments import write_arrays
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


def inspect_upstream(
    inspector: Inspector, program: str, only: str, targets: Sequence[Target], step: Step = quiet
) -> Iterator[Examined]:
    """Inspect, on each target, the first case that `only` selects and the target supports.

    `only` is a case as upstream prints it, `FLASH_ATTN_EXT(hsk=64,...)`, or a regular expression over its parameters.
    """
    from fattn_probe.daily.ops.parse import ask_options, plan_ops  # these take time to import
    from fattn_probe.daily.ops.rounds import Timeouts, run_ops_on

    if program != TEST_BACKEND_OPS:
        raise InputError(f"--program {program!r}: allowed: {RUNNER}, {TEST_BACKEND_OPS}")
    session = inspector.session
    patient = Timeouts(600.0, 1800.0)  # a debug build on a busy machine is silent for a minute
    for target in targets:
        step(f"{program} on {target}, under the debugger")
        listed = run_ops_on(session, target, "support", only=only, timeouts=patient, on_result=lambda *_: None)
        supported = [result.case for result in listed.results if result.status == "ok"]
        if not supported:
            none = f"--filter {only!r}: {target} supports none of the {len(listed.results)} cases it selects"
            raise listed.problem() or InputError(none)
        options = ask_options(session.build_for(target, program).test_backend_ops, session.env(target, program))
        words = plan_ops(options, "test", target.backend, supported[0])
        yield Examined(inspector.inspect_upstream(supported[0], words, target))
