"""`fattn-probe inspect`: cases on targets under a debugger, to tables, JSON and pages."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.errors import ComparisonError, InputError, LostError
from fattn_probe.inspect.coverage import check
from fattn_probe.inspect.expect import mismatches
from fattn_probe.inspect.facts import Facts
from fattn_probe.inspect.inspector import Inspection, Inspector
from fattn_probe.inspect.page import page, side_by_side_page
from fattn_probe.inspect.show import facts_json, render
from fattn_probe.inspect.side_by_side import render_side_by_side, side_by_side, side_by_side_json
from fattn_probe.run.command import Work, describe
from fattn_probe.run.outcome import Failed, Fault, Lost
from fattn_probe.scenario import make_inputs


def inspect_work(inspector: Inspector, work: Work) -> Iterator[Inspection]:
    """Inspect each case on its targets."""
    for case, targets in work:
        inputs = make_inputs(case)
        for target in targets:
            if target.engine == "cpu":
                raise InputError("inspect --on cpu: ggml's CPU backend launches no kernels; choose sim:ID or gpu")
            yield inspector.inspect(case, inputs, target)


def render_inspections(done: Sequence[Inspection], verbose: bool) -> RenderableType:
    """One inspection whole, two side by side, more one after another."""
    both = pair(done)
    if both is not None:
        return render_side_by_side(side_by_side(*both), verbose=verbose)
    return Group(*(_render(item, verbose) for item in done))


def _render(item: Inspection, verbose: bool) -> RenderableType:
    if not isinstance(item.result, Facts):
        return Text(f"{item.case.name} on {item.on}: {describe(item.result)}", "red")
    return render(item.result, item.reasons, verbose=verbose)


def pair(done: Sequence[Inspection]) -> tuple[Facts, Facts] | None:
    """The two sets of facts to show side by side, if there are just two."""
    found = [item.result for item in done if isinstance(item.result, Facts)]
    return (found[0], found[1]) if len(done) == len(found) == 2 else None


def inspections_json(done: Sequence[Inspection]) -> dict[str, Any]:
    """Keys `inspections` (each `case`, `on`, `seconds`, `problem`, `facts`) and `differences` if there are two."""
    both = pair(done)
    found: dict[str, Any] = {"inspections": [_json(item) for item in done]}
    return found | ({"differences": side_by_side_json(side_by_side(*both))} if both else {})


def _json(item: Inspection) -> dict[str, Any]:
    facts, problem = None, None
    if isinstance(item.result, Facts):
        facts = facts_json(item.result, item.reasons)
    else:
        problem = describe(item.result)
    return {
        "case": item.case.name,
        "on": item.on,
        "seconds": round(item.seconds, 3),
        "problem": problem,
        "facts": facts,
    }


def write_page(done: Sequence[Inspection], path: Path) -> None:
    """One inspection, or two side by side, as a page."""
    both = pair(done)
    found = [item.result for item in done if isinstance(item.result, Facts)]
    if both is None and len(done) != 1:
        raise InputError(
            f"--html shows one case on one or two targets, or two cases; these are {len(done)} inspections"
        )
    if found:
        text = side_by_side_page(side_by_side(*both)) if both else page(found[0], done[0].reasons)
        path.write_text(text, encoding="utf-8")


def raise_if_wrong(done: Sequence[Inspection]) -> None:
    """End the command as its worst case asks for: a fault, a fact that is not as expected, work that is not divided."""
    problems = [problem for item in done for problem in _problems(item)]
    if problems:
        raise ComparisonError("\n".join(problems))
    if any(isinstance(item.result, Lost) for item in done):
        raise LostError("an inspection was lost")


def _problems(item: Inspection) -> Iterator[str]:
    where = f"{item.case.name} on {item.on}"
    if isinstance(item.result, Fault | Failed):
        yield f"{where}: a kernel failed"
    if isinstance(item.result, Facts):
        yield from (f"{where}: {mismatch}" for mismatch in mismatches(item.case.expect, item.result))
        coverage = check(item.result)
        if coverage is not None and not coverage.passes:
            yield f"{where}: the blocks do not do each tile's KV steps once"
