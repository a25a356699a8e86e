"""Show facts on a self-contained HTML page without scripts, for light and dark mode, phones and print."""

import re
from collections.abc import Sequence
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from fattn_probe.base.tables import Table
from fattn_probe.base.view.svg import pinned
from fattn_probe.daily.inspect.coverage import check
from fattn_probe.daily.inspect.facts import Facts, Value
from fattn_probe.daily.inspect.view.show import (
    ABSENT,
    SideBySide,
    block_table,
    covered,
    decision_table,
    grouped,
    kernel_table,
    occupancies,
    occupancy_legend,
    said,
    spell,
    tensor_table,
    title_of,
)
from fattn_probe.daily.inspect.view.stream_k_map import summary
from fattn_probe.daily.inspect.view.work_picture import page_map

MOST_BLOCK_ROWS = 2000
TEMPLATE = re.compile(r"\w+&lt;[\w,:-]+&gt;")
"""Matches a kernel with its template arguments, in escaped HTML."""
MEMBER = re.compile(r"\b\w+-&gt;\w+(\[\w+\])?")
"""Matches a member access through a pointer, in escaped HTML."""
LONG = re.compile(r"\w{17,}")
"""Matches a name that is wider than a column on a phone."""


def page(facts: Facts, reasons: Sequence[str] = (), trace: Markup | None = None) -> str:
    """The page of one inspection; `reasons` explain the decisions in sentences, `trace` is the trace section's body."""
    blocks = block_table(facts.blocks)
    shown = Table(blocks.columns, blocks.rows[:MOST_BLOCK_ROWS], blocks.numbers)
    cut = f", the first {MOST_BLOCK_ROWS} of {len(blocks.rows)} rows" if len(blocks.rows) > MOST_BLOCK_ROWS else ""
    choice = facts.choice
    words: dict[str, Any] = work_of(facts) | {
        "title": title_of(facts.about),
        "about": {name: value for name, value in facts.about.items() if value and name not in ("case", "device")},
        "fault": facts.fault,
        "choice": choice,
        "reasons": reasons,
        "decisions": decision_table(choice.decisions) if choice and choice.decisions else None,
        "tensors": tensor_table(facts.tensors) if facts.tensors else None,
        "op_params": {name: value for name, value in facts.op_params.items() if name != "op_params"},
        "launch": grouped(facts),
        "occupancy": occupancy_legend(facts),
        "kernels": kernel_table(facts.kernels) if facts.kernels else None,
        "trace": trace,
        "blocks": shown if blocks.rows else None,
        "blocks_said": f"{len(facts.blocks)} blocks{cut}",
        "missing": facts.missing,
    }
    entries = [
        ("work", "Division of work", words["map"]),
        ("choice", "Choice", choice),
        ("tensors", "Tensors", facts.tensors),
        ("launch", "Launch", words["launch"]),
        ("kernels", "Kernels launched", facts.kernels),
        ("trace", "Trace", trace),
        ("blocks", "Blocks", blocks.rows),
        ("missing", "Missing", facts.missing),
    ]
    words["contents"] = [(anchor, heading) for anchor, heading, there in entries if there]
    return environment().get_template("facts.html.j2").render(words)


def side_by_side_page(both: SideBySide) -> str:
    """The page of two inspections: the two maps, and their differences in a collapsed section."""
    a, b = both.titles
    facts = [(name, *map(_lines, values)) for name, *values in both.facts]
    decisions = [(f"{condition}\n{function}", *outcomes) for function, condition, *outcomes in both.decisions]
    sides = [
        {"title": title, "anchor": f"work-{name}"} | work_of(side, name)
        for title, name, side in ((a, "a", both.a), (b, "b", both.b))
    ]
    words = {
        "title": f"{a} | {b}",
        "facts": Table(("fact", a, b), tuple(facts)),
        "said": said(both),
        "notes": occupancies(both),
        "decisions": Table(("condition", a, b), tuple(decisions)),
        "sides": sides,
        "contents": [
            *((side["anchor"], f"Division of work: {side['title']}") for side in sides if side["map"]),
            ("facts", "Facts"),
            *([("decisions", "Dispatch")] if decisions else []),
        ],
    }
    return environment().get_template("side_by_side.html.j2").render(words)


def _lines(value: Value) -> str:
    """A value of one inspection; several kernels are on separate lines."""
    if isinstance(value, list) and any(isinstance(item, str) for item in value):
        return "\n".join(map(spell, value))
    return ABSENT if value is None else spell(value)


def environment(*packages: str) -> Environment:
    """The templates in this module's folder and in other packages; everything except `Markup` is escaped."""
    found = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in (*packages, "fattn_probe.daily.inspect.view")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"spell": spell, "breakable": breakable}
    return found


def breakable(text: str) -> Markup:
    """Text as HTML whose lines may break between template arguments and in long names, but not inside `Q->ne[1]`."""
    words = str(escape(text))
    words = TEMPLATE.sub(lambda kernel: kernel[0].replace("&lt;", "<wbr>&lt;").replace(",", ",<wbr>"), words)
    words = MEMBER.sub(r'<span class="whole">\g<0></span>', words)
    return Markup(LONG.sub(lambda name: name[0].replace("_", "_<wbr>"), words))  # escaped above


def work_of(facts: Facts, name: str = "map") -> dict[str, Any]:
    """The template's data for the division of work; `name` makes the ids unique if a page has several maps."""
    coverage = check(facts)
    return {"map": map_of(facts, name), "coverage": coverage, "covered": covered(coverage) if coverage else ""}


def map_of(facts: Facts, name: str) -> dict[str, Any] | None:
    """The template's data for a map; None if there is nothing to draw. `name` makes the ids unique on a page."""
    found = page_map(facts)
    if found is None:
        return None
    labels, work = map(Markup, pinned(found.drawing(), found.left, ids=name))  # text from outside is already escaped
    return {"labels": labels, "work": work, "notes": found.notes(), "sentences": summary(facts)}
