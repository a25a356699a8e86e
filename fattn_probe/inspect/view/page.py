"""Facts as one self-contained HTML page without scripts, for light and dark, phone and print."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from fattn_probe.inspect.coverage import check
from fattn_probe.inspect.facts import Facts
from fattn_probe.inspect.view.pairs import spell
from fattn_probe.inspect.view.show import title_of
from fattn_probe.inspect.view.side_by_side import ABSENT, SideBySide, said
from fattn_probe.inspect.view.stream_k_map import summary
from fattn_probe.inspect.view.svg import picture_of
from fattn_probe.inspect.view.tables import (
    block_table,
    covered,
    decision_table,
    grouped,
    kernel_table,
    tensor_table,
)
from fattn_probe.tables import Table

MOST_BLOCK_ROWS = 2000
TEMPLATE = re.compile(r"\w+&lt;[\w,:-]+&gt;")
"""Matches a kernel with its template arguments, escaped."""
MEMBER = re.compile(r"\b\w+-&gt;\w+(\[\w+\])?")
"""Matches a member access through a pointer, escaped."""
LONG = re.compile(r"\w{17,}")
"""A name that is wider than a column on a phone."""


@dataclass(frozen=True)
class Section:
    """An additional section of the page: `body` is HTML or SVG, inserted unchanged; `anchor` is its id."""

    anchor: str
    heading: str
    body: Markup


def page(facts: Facts, reasons: Sequence[str] = (), sections: Sequence[Section] = ()) -> str:
    """The page of one inspection; `reasons` are the decisions in sentences, `sections` come before the blocks."""
    return environment().get_template("facts.html.j2").render(_words(facts, reasons, sections))


def side_by_side_page(both: SideBySide) -> str:
    """The page of two inspections: their differences, and the two maps."""
    a, b = both.titles
    facts = [(row.fact, *(ABSENT if value is None else spell(value) for value in (row.a, row.b))) for row in both.facts]
    decisions = [(f"{row.condition}\n{row.function}", row.a, row.b) for row in both.decisions]
    words = {
        "title": f"{a} | {b}",
        "facts": Table(("fact", a, b), tuple(facts)),
        "said": said(both),
        "decisions": Table(("condition", a, b), tuple(decisions)),
        "sides": [{"title": a} | work_of(both.a, "a"), {"title": b} | work_of(both.b, "b")],
    }
    return environment().get_template("side_by_side.html.j2").render(words)


def environment(*packages: str) -> Environment:
    """The templates beside this module and those of other packages; everything except `Markup` is escaped."""
    found = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in (*packages, "fattn_probe.inspect.view")]),
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
    """The template's data for the division of work; `name` makes ids unique if a page has several maps."""
    coverage = check(facts)
    return {
        "map": map_of(facts, name),
        "coverage": coverage,
        "covered": covered(coverage) if coverage else "",
    }


def map_of(facts: Facts, name: str) -> dict[str, Any] | None:
    """The template's data for a map; None if there is nothing to draw. `name` makes ids unique on a page."""
    picture = picture_of(facts, name)
    if picture is None:
        return None
    labels, work = map(Markup, picture.pinned)  # its foreign text is escaped
    return {"labels": labels, "work": work, "notes": picture.notes, "sentences": summary(facts)}


def _words(facts: Facts, reasons: Sequence[str], sections: Sequence[Section]) -> dict[str, Any]:
    """The template's variables."""
    blocks = block_table(facts.blocks)
    choice = facts.choice
    words: dict[str, Any] = {
        "title": title_of(facts.about),
        "about": {name: value for name, value in facts.about.items() if value and name not in ("case", "device")},
        "fault": facts.fault,
        "choice": choice,
        "reasons": reasons,
        "decisions": decision_table(choice.decisions) if choice and choice.decisions else None,
        "tensors": tensor_table(facts.tensors) if facts.tensors else None,
        "op_params": {name: value for name, value in facts.op_params.items() if name != "op_params"},
        "launch": grouped(facts.launch),
        "kernels": kernel_table(facts.kernels) if facts.kernels else None,
        "sections": sections,
        "blocks": _cut(blocks) if blocks.rows else None,
        "blocks_said": _said(len(facts.blocks), len(blocks.rows)),
        "missing": facts.missing,
    }
    words |= work_of(facts)
    return words | {"contents": _contents(words, sections)}


def _cut(table: Table) -> Table:
    return Table(table.columns, table.rows[:MOST_BLOCK_ROWS], table.numbers)


def _said(blocks: int, rows: int) -> str:
    cut = f", the first {MOST_BLOCK_ROWS} of {rows} rows" if rows > MOST_BLOCK_ROWS else ""
    return f"{blocks} blocks{cut}"


def _contents(words: Mapping[str, Any], sections: Sequence[Section]) -> list[tuple[str, str]]:
    """(anchor, heading) of the sections that exist."""
    fixed = {
        "map": ("work", "Division of work"),
        "choice": ("choice", "Choice"),
        "tensors": ("tensors", "Tensors"),
        "launch": ("launch", "Launch"),
        "kernels": ("kernels", "Kernels launched"),
        "sections": ("", ""),
        "blocks": ("blocks", "Blocks"),
        "missing": ("missing", "Missing"),
    }
    found: list[tuple[str, str]] = []
    for name, entry in fixed.items():
        if name == "sections":
            found += [(section.anchor, section.heading) for section in sections]
        elif words[name]:
            found.append(entry)
    return found
