"""`fattn-probe inspect`: cases on targets under a debugger, to tables, JSON and pages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.build import RUNNER, TEST_BACKEND_OPS
from fattn_probe.device import Target
from fattn_probe.errors import ComparisonError, InputError, LostError
from fattn_probe.inspect.coverage import check
from fattn_probe.inspect.expect import mismatches
from fattn_probe.inspect.facts import Facts, Value
from fattn_probe.inspect.inspector import Inspection, Inspector
from fattn_probe.inspect.looking import Watch, WatchResult, watch
from fattn_probe.inspect.page import page, side_by_side_page
from fattn_probe.inspect.show import facts_json, render
from fattn_probe.inspect.side_by_side import render_side_by_side, side_by_side, side_by_side_json
from fattn_probe.inspect.svg import svg_of
from fattn_probe.inspect.tensor_values import Slice, as_text
from fattn_probe.inspect.tensors import TensorReading, read_tensors
from fattn_probe.inspect.upstream import inspect_upstream
from fattn_probe.run.command import Work, describe
from fattn_probe.run.gguf_file import Bytes
from fattn_probe.run.outcome import Failed, Fault, Lost
from fattn_probe.scenario import Case, make_inputs


@dataclass(frozen=True)
class Looks:
    """What is looked at besides the facts."""

    values: tuple[Slice, ...] = ()
    captures: Path | None = None
    watch: Watch | None = None


@dataclass(frozen=True)
class Seen:
    """An inspection, and what was looked at besides."""

    inspection: Inspection
    expect: Mapping[str, Value] = field(default_factory=dict)
    tensors: TensorReading | None = None
    watched: WatchResult | None = None

    @property
    def facts(self) -> Facts | None:
        """The facts, if the program got to its kernel."""
        return self.inspection.result if isinstance(self.inspection.result, Facts) else None

    @property
    def where(self) -> str:
        """`gqa on sim:h200`."""
        return f"{self.inspection.name} on {self.inspection.on}"


def inspect_work(inspector: Inspector, work: Work, looks: Looks) -> Iterator[Seen]:
    """Inspect each case on its targets."""
    for case, targets in work:
        inputs = make_inputs(case)
        for target in targets:
            if target.engine == "cpu":
                raise InputError("inspect --on cpu: ggml's CPU backend launches no kernels; choose sim:ID or gpu")
            yield look(inspector, case, inputs, target, looks)


def look(inspector: Inspector, case: Case, inputs: Mapping[str, Bytes], target: Target, looks: Looks) -> Seen:
    """The facts of a case on a target, then what else was asked for; nothing else if it has no kernel."""
    seen = Seen(inspector.inspect(case, inputs, target), case.expect)
    if seen.facts is None:
        return seen
    if looks.values or looks.captures:
        read = read_tensors(inspector, case, inputs, target, wanted=looks.values, captures=looks.captures)
        if not isinstance(read, TensorReading):
            return replace(seen, inspection=replace(seen.inspection, result=read))
        seen = replace(seen, tensors=read)
    if looks.watch is not None:
        stops = watch(inspector, case, inputs, target, looks.watch)
        if not isinstance(stops, WatchResult):
            return replace(seen, inspection=replace(seen.inspection, result=stops))
        seen = replace(seen, watched=stops)
    return seen


def inspect_upstream_on(inspector: Inspector, program: str, only: str, targets: Sequence[Target]) -> Iterator[Seen]:
    """Inspect a case of upstream's on targets."""
    if program != TEST_BACKEND_OPS:
        raise InputError(f"--program {program!r}: allowed: {RUNNER}, {TEST_BACKEND_OPS}")
    for target in targets:
        yield Seen(inspect_upstream(inspector, only, target))


def render_seen(done: Sequence[Seen], verbose: bool) -> RenderableType:
    """One inspection whole, two side by side, more one after another."""
    both = pair(done)
    if both is not None:
        return render_side_by_side(side_by_side(*both), verbose=verbose)
    return Group(*(part for item in done for part in _render(item, verbose)))


def _render(item: Seen, verbose: bool) -> Iterator[RenderableType]:
    if not isinstance(item.inspection.result, Facts):
        yield Text(f"{item.where}: {describe(item.inspection.result)}", "red")
        yield from (Text(f"  - {reason}") for reason in item.inspection.reasons)
        return
    yield render(item.inspection.result, item.inspection.reasons, verbose=verbose)
    if item.tensors is not None:
        yield render_tensors(item.tensors)
    if item.watched is not None:
        yield render_watched(item.watched)


def render_tensors(read: TensorReading) -> RenderableType:
    """Whether memory holds the inputs, and the slices that were asked for."""
    lines: list[RenderableType] = [Text("\nTensors in memory", "bold")]
    for item in read.checks:
        same = f"{item.bytes} bytes, equal to the input's"
        differs = f"{item.differing} of {item.bytes} bytes differ from the input's, the first at {item.first}"
        lines.append(Text(f"{item.name}: {differs if item.differing else same}", "red" if item.differing else ""))
    for wanted, values in read.parts:
        lines.append(Text(f"{wanted.text} =\n{as_text(values)}"))
    if read.file is not None:
        lines.append(Text(f"capture: {read.file}", "dim"))
    return Group(*lines)


def render_watched(watched: WatchResult) -> RenderableType:
    """Each stop with its values."""
    lines: list[RenderableType] = [Text("\nStops", "bold")]
    for stop in watched.stops:
        lines.append(Text(f"{stop.function.partition('<')[0]} at {Path(stop.file).name}:{stop.line}"))
        for expression, value in stop.values.items():
            lines.append(Text(f"  {expression} = {value if value is not None else '(cannot be evaluated here)'}"))
    if watched.why:
        lines.append(Text(f"no more stops: the program {watched.why}", "dim"))
    return Group(*lines)


def pair(done: Sequence[Seen]) -> tuple[Facts, Facts] | None:
    """The two sets of facts to show side by side, if there are just two and nothing besides."""
    found = [item.facts for item in done if item.facts and not (item.tensors or item.watched)]
    return (found[0], found[1]) if len(done) == len(found) == 2 else None


def seen_json(done: Sequence[Seen]) -> dict[str, Any]:
    """Keys `inspections` (docs/inspect.md), and `differences` if there are two."""
    both = pair(done)
    found: dict[str, Any] = {"inspections": [_json(item) for item in done]}
    return found | ({"differences": side_by_side_json(side_by_side(*both))} if both else {})


def _json(item: Seen) -> dict[str, Any]:
    inspection = item.inspection
    found: dict[str, Any] = {
        "case": inspection.name,
        "on": inspection.on,
        "seconds": round(inspection.seconds, 3),
        "problem": None if isinstance(inspection.result, Facts) else describe(inspection.result),
        "facts": facts_json(item.facts, inspection.reasons) if item.facts else None,
        "reasons": list(inspection.reasons),
    }
    if item.tensors is not None:
        found["bytes"] = [asdict(one) for one in item.tensors.checks]
        found["values"] = {wanted.text: values.tolist() for wanted, values in item.tensors.parts}
        found["capture"] = str(item.tensors.file) if item.tensors.file else None
    if item.watched is not None:
        found["stops"] = [asdict(stop) for stop in item.watched.stops]
    return found


def write_page(done: Sequence[Seen], path: Path) -> None:
    """One inspection, or two side by side, as a page."""
    both = pair(done)
    if both is None and len(done) != 1:
        raise InputError(f"--html shows one inspection, or two side by side; these are {len(done)}")
    (first, *_) = done
    if both is not None:
        path.write_text(side_by_side_page(side_by_side(*both)), encoding="utf-8")
    elif first.facts is not None:
        path.write_text(page(first.facts, first.inspection.reasons), encoding="utf-8")


def write_map(done: Sequence[Seen], path: Path) -> None:
    """The map of one inspection's work."""
    facts = [item.facts for item in done if item.facts is not None]
    if len(facts) != 1 or not facts[0].blocks:
        raise InputError(f"--svg shows the blocks of one inspection; these are {len(facts)}")
    path.write_text(svg_of(facts[0]), encoding="utf-8")


def raise_if_wrong(done: Sequence[Seen]) -> None:
    """End the command as its worst case asks for: a fault, a fact that is not as expected, work that is not divided."""
    problems = [problem for item in done for problem in _problems(item)]
    if problems:
        raise ComparisonError("\n".join(problems))
    if any(isinstance(item.inspection.result, Lost) for item in done):
        raise LostError("an inspection was lost")


def _problems(item: Seen) -> Iterator[str]:
    if isinstance(item.inspection.result, Fault | Failed):
        yield f"{item.where}: a kernel failed"
    if item.facts is not None:
        yield from (f"{item.where}: {mismatch}" for mismatch in mismatches(item.expect, item.facts))
        coverage = check(item.facts)
        if coverage is not None and not coverage.passes:
            yield f"{item.where}: the blocks do not do each tile's KV steps once"
    if item.tensors is not None:
        wrong = [found.name for found in item.tensors.checks if found.differing]
        yield from (f"{item.where}: {name} in memory is not the input" for name in wrong)
