"""Two inspections side by side: the facts and the dispatch's decisions that differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.tables import Table
from fattn_probe.daily.inspect.coverage import check
from fattn_probe.daily.inspect.facts import Facts, Value
from fattn_probe.daily.inspect.view.show import OCCUPANCY, map_lines, occupancy_legend, spell, title_of

ABSENT = "-"


@dataclass(frozen=True)
class SideBySide:
    """Two inspections and their differences; `equal` is the number of equal facts.

    `facts` are (name, a, b), with None on a side without that fact. `decisions` are (function, condition, a, b): the
    outcomes of a condition of the dispatch are "yes", "no", "not asked", or "yes, no" if it was evaluated twice.
    """

    a: Facts
    b: Facts
    facts: tuple[tuple[str, Value, Value], ...]
    decisions: tuple[tuple[str, str, str, str], ...]
    equal: int

    @property
    def titles(self) -> tuple[str, str]:
        """The titles of the two: case and device, plus other properties if these are equal."""
        titles = (title_of(self.a.about), title_of(self.b.about))
        telling = [name for name in self.a.about if self.a.about[name] != self.b.about.get(name)]
        if titles[0] != titles[1] or not telling:
            return titles
        first, second = (side.about.get(telling[0], ABSENT) or f"no {telling[0]}" for side in (self.a, self.b))
        return f"{titles[0]}, {first}", f"{titles[1]}, {second}"


def side_by_side(a: Facts, b: Facts) -> SideBySide:
    """Compare two inspections by the names of their facts, in the order of the first."""
    first, second = a.flat(), b.flat()
    both = first | second
    facts = tuple(
        (name, first.get(name), second.get(name))
        for name in both
        if first.get(name) != second.get(name) or (name in first) != (name in second)
    )
    answers, others = _answers(a), _answers(b)
    pairs = ((key, answers.get(key, "not asked"), others.get(key, "not asked")) for key in answers | others)
    decisions = tuple((*key, one, other) for key, one, other in pairs if one != other)
    return SideBySide(a, b, facts, decisions, len(both) - len(facts))


def _answers(facts: Facts) -> dict[tuple[str, str], str]:
    """The outcomes by function and condition; line numbers are ignored, because the sources may differ."""
    answers: dict[tuple[str, str], list[str]] = {}
    for decision in facts.choice.decisions if facts.choice else ():
        key = (decision.function, decision.condition)
        answers.setdefault(key, []).append("yes" if decision.held else "no")
    return {key: ", ".join(held) for key, held in answers.items()}


def render_side_by_side(both: SideBySide, *, verbose: bool = False) -> RenderableType:
    """Show the differences in two columns, the number of equal facts, and the two maps."""
    titles = both.titles
    parts: list[RenderableType] = [Text(f"{titles[0]}  |  {titles[1]}", "bold"), Text()]
    if both.facts:
        parts.append(_table("fact", titles, both.facts))
    parts += [Text(line, "dim") for line in (said(both), *occupancies(both))]
    if both.decisions:
        rows = [(f"{condition}\n  in {function}", a, b) for function, condition, a, b in both.decisions]
        parts += [Text(), _table("condition", titles, rows)]
    for title, facts in zip(titles, (both.a, both.b), strict=True):
        lines = map_lines(facts, check(facts), verbose)
        parts += [Text(f"\nDivision of work: {title}", "bold"), *lines] if lines else []
    return Group(*parts)


def said(both: SideBySide) -> str:
    """The number of equal and of different facts, in words."""
    differ = f"{len(both.facts)} differ{'s' if len(both.facts) == 1 else ''}" if both.facts else "none differs"
    return f"{both.equal} fact{' is' if both.equal == 1 else 's are'} equal, {differ}"


def occupancies(both: SideBySide) -> list[str]:
    """Notes on the two occupancies, which divide the work, if they are not known."""
    sides = zip(both.titles, (both.a, both.b), strict=True)
    return [f"{title}: {OCCUPANCY} {line}" for title, facts in sides for line in occupancy_legend(facts)]


def _table(what: str, titles: tuple[str, str], rows: Sequence[tuple[str, Value, Value]]) -> Table:
    words = ((Text(name, "cyan"), marked(a, b), marked(b, a)) for name, a, b in rows)
    return Table((what, *titles), tuple(words), prose=frozenset(titles))


def marked(value: Value, other: Value) -> Text:
    """A value, with the differences from the other value emphasised."""
    if value is None:
        return Text(ABSENT)
    if not (isinstance(value, list) and isinstance(other, list) and len(value) == len(other)):
        # A kernel breaks before its template arguments, and several are on separate lines.
        items = value if isinstance(value, list) and any(isinstance(item, str) for item in value) else [value]
        return Text("\n".join(spell(item).replace("<", "\n  <", 1) for item in items), "bold magenta")
    pairs = zip(value, other, strict=True)
    return Text(" ").join(Text(spell(mine), "bold magenta" if mine != theirs else "") for mine, theirs in pairs)


def side_by_side_json(both: SideBySide) -> dict[str, Any]:
    """Keys a, b (their `about`), equal, facts (fact, a, b), decisions (function, condition, a, b)."""
    return {
        "a": dict(both.a.about),
        "b": dict(both.b.about),
        "equal": both.equal,
        "facts": [dict(zip(("fact", "a", "b"), row, strict=True)) for row in both.facts],
        "decisions": [dict(zip(("function", "condition", "a", "b"), row, strict=True)) for row in both.decisions],
    }
