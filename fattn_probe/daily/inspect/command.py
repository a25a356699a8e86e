"""`fattn-probe inspect`: runs cases on targets under a debugger, and prints tables, JSON and pages."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.errors import ComparisonError, InputError, LostError
from fattn_probe.cases.shipped import page
from fattn_probe.daily.inspect.coverage import check
from fattn_probe.daily.inspect.examine import Examined, WatchResult
from fattn_probe.daily.inspect.facts import Facts, Value
from fattn_probe.daily.inspect.view.show import facts_json, render, render_side_by_side, side_by_side, side_by_side_json
from fattn_probe.machine.run.command import describe
from fattn_probe.machine.run.outcome import Failed, Finding, Lost

AXES = {"x": 0, "y": 1, "z": 2}


def render_examined(done: Sequence[Examined], verbose: bool) -> RenderableType:
    """Show one inspection in full, two side by side, or several one after the other; then where to learn more."""
    both = pair(done)
    if both is not None:
        return render_side_by_side(side_by_side(*both), verbose=verbose)
    step = "step 5" if any(item.trace for item in done) else "step 4"
    words = f"{page('guide/tour.md')}, {step}, explains this; `fattn-probe glossary TERM` explains a word"
    learn = [Text(words, "dim")] * any(item.facts for item in done)
    return Group(*(part for item in done for part in _render(item, verbose)), *learn)


def _render(item: Examined, verbose: bool) -> Iterator[RenderableType]:
    if not isinstance(item.inspection.result, Facts):
        yield Text(f"{item.label}: {describe(item.inspection.result)}", "red")
        yield from (Text(f"  - {reason}") for reason in item.inspection.reasons)
        return
    yield render(item.inspection.result, item.inspection.reasons, verbose=verbose)
    if item.tensors is not None:
        yield Text("\nTensors in memory", "bold")
        for check in item.tensors.checks:
            same = f"{check['bytes']} bytes, identical to the input"
            differs = f"{check['differing']} of {check['bytes']} bytes differ from the input, "
            said, style = (f"{differs}the first at {check['first']}", "red") if check["differing"] else (same, "")
            yield Text(f"{check['name']}: {said}", style)
        for wanted, values in item.tensors.parts:
            numbers = np.array2string(values, precision=6, threshold=200, edgeitems=4, max_line_width=100)
            yield Text(f"{wanted.text} =\n{numbers}")
        if item.tensors.file is not None:
            yield Text(f"capture: {item.tensors.file}", "dim")
    if item.watched is not None:
        yield from _stops(item.watched)
    if item.trace is not None:
        from fattn_probe.daily.inspect.trace.show import render_trace  # other inspections do not load it

        yield Text("\nTrace", "bold")
        yield render_trace(item.trace, verbose=verbose, lane=item.lane)
        if item.output is not None:
            colour = "red" if item.output_fails else "green"
            yield Text.assemble(("output: ", "bold"), (item.output.status.value, colour), f": {item.output.reason}")
    if item.nan_searched:
        yield Text("\nFirst NaN or infinity", "bold")
        yield Text(item.nan.words if item.nan else "none: every input and every element of dst is finite")


def _stops(watched: WatchResult) -> Iterator[RenderableType]:
    """Show each stop with the values read there."""
    yield Text("\nStops", "bold")
    for stop in watched.stops:
        yield Text(stop.place)
        for expression, value in stop.values.items():
            if value is not None:
                yield Text(f"  {expression} = {value}")
            else:
                yield Text(f"  {expression}: {stop.refusals[expression]}", "red")
    if watched.why:
        yield Text(f"no more stops: the program {watched.why}", "dim")


def pair(done: Sequence[Examined]) -> tuple[Facts, Facts] | None:
    """The two sets of facts to show side by side; None unless there are exactly two inspections, without extras."""
    extras = [bool(item.tensors or item.watched or item.trace or item.nan_searched) for item in done]
    found = [item.facts for item, extra in zip(done, extras, strict=True) if item.facts and not extra]
    return (found[0], found[1]) if len(done) == len(found) == 2 else None


def examined_json(done: Sequence[Examined]) -> dict[str, Any]:
    """The JSON document: `inspections` (docs/guide/inspect.md), and `differences` if there are two."""
    both = pair(done)
    found: dict[str, Any] = {"inspections": [_json(item) for item in done]}
    return found | ({"differences": side_by_side_json(side_by_side(*both))} if both else {})


def _json(item: Examined) -> dict[str, Any]:
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
        found["bytes"] = list(item.tensors.checks)
        found["values"] = {wanted.text: values.tolist() for wanted, values in item.tensors.parts}
        found["capture"] = str(item.tensors.file) if item.tensors.file else None
    if item.watched is not None:
        found["stops"] = [asdict(stop) for stop in item.watched.stops]
    if item.trace is not None:
        from fattn_probe.daily.inspect.trace.show import trace_json

        found["trace"] = trace_json(item.trace)
    if item.output is not None:
        found["output"] = {"status": item.output.status.value, "reason": item.output.reason}
    if item.nan_searched:
        found["not_finite"] = asdict(item.nan) | {"value": str(item.nan.value)} if item.nan else None
    return found


def raise_if_wrong(done: Sequence[Examined]) -> None:
    """Raise the exception with the exit code of the worst case.

    ComparisonError: a fault, an unexpected fact or a wrong division of work. InputError: a `--print` had no value.
    """
    problems = [problem for item in done for problem in _problems(item)]
    if problems:
        raise ComparisonError("\n".join(problems))
    if any(isinstance(item.inspection.result, Lost) for item in done):
        raise LostError("an inspection was lost")
    never_read = [entry for item in done if item.watched for entry in item.watched.never_read.items()]
    refused = [f"--print {text!r} has no value in {stop.place}: {refusal}" for text, (stop, refusal) in never_read]
    if refused:
        raise InputError("\n".join(refused))


def _problems(item: Examined) -> Iterator[str]:
    if isinstance(item.inspection.result, Finding | Failed):
        yield f"{item.label}: a kernel failed"
    if item.facts is not None:
        yield from [f"{item.label}: {item.facts.fault}"] * bool(item.facts.fault)
        yield from (f"{item.label}: {mismatch}" for mismatch in mismatches(item.expect, item.facts))
        coverage = check(item.facts)
        if coverage is not None and not coverage.passes:
            yield f"{item.label}: the blocks do not compute each tile's KV steps exactly once"
    if item.tensors is not None:
        wrong = [found["name"] for found in item.tensors.checks if found["differing"]]
        yield from (f"{item.label}: {name} in memory differs from the input" for name in wrong)
    if item.nan is not None:
        yield f"{item.label}: a value is not finite"
    if item.trace is not None and item.trace.deviation is not None:
        yield f"{item.label}: the traced values deviate from those of a correct kernel"
    if item.output is not None and item.output_fails:
        yield f"{item.label}: the output is wrong: {item.output.reason}"


def mismatches(expect: Mapping[str, Value], facts: Facts) -> list[str]:
    """Describe the entries of `expect` that do not hold; for an unknown fact, suggests the most similar name.

    `blocks_num.x` is the first number of `blocks_num`.
    """
    known, said = facts.flat(), []
    for fact, expected in expect.items():
        name, _, axis = fact.rpartition(".")
        values = known.get(name)
        if fact in known:
            found = known[fact]
        elif axis in AXES and isinstance(values, list) and AXES[axis] < len(values):
            found = values[AXES[axis]]
        else:
            nearest = difflib.get_close_matches(fact, known, 1, 0.0)
            why = f"but there is no such fact; the nearest is {nearest[0]}" if nearest else "found None"
            said.append(f"{fact}: expected {expected}, {why}")
            continue
        if found != expected:
            said.append(f"{fact}: expected {expected}, found {found}")
    return said
