"""The fates of mutants as tables and as JSON."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.figures import number_of
from fattn_probe.base.tables import Table
from fattn_probe.lab.detect.argued import Equivalent, argument, equivalents
from fattn_probe.lab.detect.mutate import Mutated
from fattn_probe.lab.detect.verdicts import MutantVerdict

EQUIVALENT = "equivalent"
FATES = ("killed", "survived", "another kernel", "not reached", EQUIVALENT)
MOST = 20  # survivors in the terminal's list
MOST_CASES = 3


def document(found: Mutated) -> dict[str, Any]:
    """The fates for `--json`."""
    known = equivalents(amd=found.amd)
    return {
        "on": list(found.on),
        "cases": found.cases,
        "failing": list(found.failing),
        "other_bits": None if found.other_bits is None else list(found.other_bits),
        "compiled": found.compiled,
        "left": found.left,
        "counts": dict(Counter(fate_of(verdict, known) for verdict in found.verdicts)),
        "mutants": [
            verdict.document()
            | {"fate": fate_of(verdict, known), "because": argument(verdict.mutant, known)}
            | {"ran": list(found.ran[verdict.mutant.digest]) if verdict.mutant.digest in found.ran else None}
            for verdict in found.verdicts
        ],
    }


def fate_of(verdict: MutantVerdict, known: Sequence[Equivalent]) -> str:
    """A verdict's fate; a mutant that no case killed may be equivalent."""
    return EQUIVALENT if not verdict.by and argument(verdict.mutant, known) else verdict.fate


def render(found: Mutated) -> RenderableType:
    """The fates by file and by kind, the kinds of kills, and the survivors."""
    return Group(*parts(found))


def parts(found: Mutated) -> Iterator[RenderableType]:
    """The parts of the report."""
    words = f"{number_of(len(found.verdicts), 'mutant')}, {number_of(found.cases, 'case')} on {', '.join(found.on)}"
    yield Text(words + (f"; {found.left} are not tried yet: run it again to continue\n" if found.left else "\n"))
    known = equivalents(amd=found.amd)
    fates = [(verdict, fate_of(verdict, known)) for verdict in found.verdicts]
    yield table("file", [(verdict.mutant.file, fate) for verdict, fate in fates])
    yield Text()
    yield table("fault", [(verdict.mutant.operator, fate) for verdict, fate in fates])
    for name, words in (("by", "killed by"), ("on", "killed on")):
        counts = Counter(getattr(verdict, name) for verdict in found.verdicts if verdict.by)
        said = ", ".join(f"{word} {count}" for word, count in counts.most_common())
        yield Text(f"\n{words}: {said or 'nothing'}")
    for item in found.failing:
        yield Text(f"fails without a mutant, and kills none: {item}")
    if found.other_bits:
        yield Text(f"the switches alone change the bits of {len(found.other_bits)} of {found.cases} cases")
    for verdict in found.verdicts:
        if verdict.by and argument(verdict.mutant, known):
            yield Text(f"killed, though it is listed as equivalent: {verdict.mutant}, by {verdict.case}")
    survivors = [verdict for verdict, fate in fates if fate == "survived"]
    for verdict in sorted(survivors, key=lambda verdict: (verdict.mutant.file, verdict.mutant.line))[:MOST]:
        words = f" ({verdict.said})" if verdict.said else ""
        yield Text(f"survived {number_of(verdict.cases, 'case')}: {verdict.mutant}{words}")
        if cases := found.ran.get(verdict.mutant.digest, ()):
            more = f" and {len(cases) - MOST_CASES} more" if len(cases) > MOST_CASES else ""
            yield Text(f"  executed by {', '.join(cases[:MOST_CASES])}{more}", "dim")
    if len(survivors) > MOST:
        yield Text(f"and {len(survivors) - MOST} more survived; --json lists them")


def table(name: str, pairs: Sequence[tuple[str, str]]) -> Table:
    """The number of mutants by fate, and the share killed of those that are not equivalent; a row for each group."""
    rows = []
    for group in (*sorted({group for group, _ in pairs}), "all"):
        counts = Counter(fate for own, fate in pairs if group in (own, "all"))
        reached = sum(counts[fate] for fate in FATES if fate not in ("not reached", EQUIVALENT))
        numbers = reached, reached + counts["not reached"]
        shares = (f"{100 * counts['killed'] / number:.0f} %" if number else "-" for number in numbers)
        rows.append((group, *(str(counts[fate]) for fate in FATES), *shares))
    return Table((name, *FATES, "killed of reached", "of all"), tuple(rows))
