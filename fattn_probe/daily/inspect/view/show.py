"""Facts as text (rich) and as JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.tables import labelled, listed
from fattn_probe.daily.inspect.coverage import Coverage, check
from fattn_probe.daily.inspect.facts import Choice, Facts
from fattn_probe.daily.inspect.view.tables import (
    block_table,
    covered,
    decision_table,
    grouped,
    kernel_table,
    occupancy_legend,
    pairs,
    tensor_table,
)
from fattn_probe.daily.inspect.view.work_picture import TerminalMap

FINDINGS_SHOWN = 8
CELL = 12


def render(facts: Facts, reasons: Sequence[str] = (), *, verbose: bool = False) -> RenderableType:
    """Show all facts, section by section; `verbose` shows every block, tile and condition.

    `reasons` are the decisions in sentences, from `explain`.
    """
    coverage, notes = check(facts), occupancy_legend(facts)
    if (facts.about.get("engine"), facts.about.get("flavour")) == ("cuda", "debug"):
        notes.append(
            "nvcc -G takes more registers: a release build may fit more blocks an SM, and divide the work by that"
        )
    params = {name: value for name, value in facts.op_params.items() if name != "op_params"}
    sections: dict[str, list[RenderableType]] = {
        "Tensors": [tensor_table(facts.tensors)] if facts.tensors else [],
        "Op params": [pairs(params)] if params else [],
        "Choice": choice_lines(facts.choice, reasons, verbose) if facts.choice else [],
        "Launch": [launch_lines(facts), *(Text(note, "dim") for note in notes)] if facts.launch else [],
        "Kernels launched": [kernel_table(facts.kernels)] if facts.kernels else [],
        "Division of work": map_lines(facts, coverage, verbose),
        "Blocks": [block_table(facts.blocks)] if verbose and facts.blocks else [],
        "Fault": [Text(facts.fault, "bold red")] if facts.fault else [],
        "Missing": [Text.assemble((item.facts, "yellow"), f": {item.why}") for item in facts.missing],
    }
    shown = [Group(Text(f"\n{title}", "bold"), *parts) for title, parts in sections.items() if parts]
    return Group(header(facts.about), *shown)


def header(about: Mapping[str, str]) -> RenderableType:
    """The case and the device, then the other properties of the run."""
    rest = {key: value for key, value in about.items() if key not in ("case", "device") and value}
    return Group(Text(title_of(about), "bold"), *([pairs(rest)] if rest else []))


def title_of(about: Mapping[str, str]) -> str:
    """`gqa on sim:h200`."""
    return " on ".join(about[key] for key in ("case", "device") if about.get(key))


def choice_lines(choice: Choice, reasons: Sequence[str], verbose: bool) -> list[RenderableType]:
    """The kernel, its template arguments, its configuration, and why it was chosen."""
    kernel = Text.assemble((choice.kernel, "bold green"), f"  ({choice.family})")
    rows: dict[str, RenderableType] = {"kernel": kernel, "template": pairs(choice.template)}
    rows |= {"config": pairs(choice.config)} if choice.config else {}
    rows |= {"because": listed(reasons)} if reasons else {}
    asked: list[RenderableType] = [Text(), decision_table(choice.decisions)] if verbose else []
    return [labelled(rows), *asked]


def launch_lines(facts: Facts) -> RenderableType:
    """The launch's variables, grouped by topic."""
    return labelled({group: pairs(values, CELL) for group, values in grouped(facts).items()})


def map_lines(facts: Facts, coverage: Coverage | None, verbose: bool) -> list[RenderableType]:
    """The map and the verdict on it."""
    if coverage is None:
        return []
    works = [work for block in facts.blocks for work in block.tiles]
    read = sum(work.read for work in works)
    how = f"{read} of {len(works)} tiles were read when the kernel processed them; the others follow from kbc"
    seen = [Text(how, "dim")] if read < len(works) else []
    return [TerminalMap(facts, coverage, None if verbose else 24), verdict(coverage), *seen]


def verdict(coverage: Coverage) -> RenderableType:
    """Whether every KV step is done exactly once, on one line; then the problems, one line each."""
    if coverage.passes:
        return Text.assemble(("coverage: ", "bold"), ("pass", "green"), f", {covered(coverage)}")
    head = Text.assemble(
        ("coverage: ", "bold"),
        ("fail", "bold red"),
        f", {len(coverage.findings)} finding{'s' * (len(coverage.findings) > 1)}",
    )
    shown = listed([finding.message for finding in coverage.findings[:FINDINGS_SHOWN]])
    left = Counter(finding.kind for finding in coverage.findings[FINDINGS_SHOWN:])
    rest = [Text(f"- and {number} more: {kind}", "dim") for kind, number in left.items()]
    return Group(head, shown, *rest)


def facts_json(facts: Facts, reasons: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON document of an inspection; docs/guide/inspect.md lists its keys."""
    coverage = check(facts)
    document: dict[str, Any] = asdict(facts)
    for launch, entry in zip(facts.kernels, document["kernels"], strict=True):
        entry["origin"] = str(launch.origin)
    if facts.choice is not None:
        document["choice"]["reasons"] = list(reasons)
    return document | {"coverage": None if coverage is None else {"passes": coverage.passes} | asdict(coverage)}
