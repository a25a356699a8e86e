"""The fates of mutants as tables and as JSON."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.detect.mutate import Mutated, Verdict
from fattn_probe.tables import Table

FATES = ("killed", "survived", "another kernel", "not reached")
MOST = 20  # survivors in the terminal's list


def document(found: Mutated) -> dict[str, Any]:
    """The fates for `--json`."""
    return {
        "on": list(found.on),
        "cases": found.cases,
        "failing": list(found.failing),
        "other_bits": None if found.other_bits is None else list(found.other_bits),
        "compiled": found.compiled,
        "left": found.left,
        "counts": dict(Counter(verdict.fate for verdict in found.verdicts)),
        "mutants": [verdict.document() for verdict in found.verdicts],
    }


def render(found: Mutated) -> RenderableType:
    """The fates by file and by kind, what killed, and the survivors."""
    return Group(*parts(found))


def parts(found: Mutated) -> Iterator[RenderableType]:
    """The parts of the report."""
    words = f"{len(found.verdicts)} of {found.compiled} mutants, {found.cases} cases on {', '.join(found.on)}"
    yield Text(words + (f"; {found.left} are not tried yet: run it again to go on\n" if found.left else "\n"))
    yield table("file", [(verdict.mutant.file, verdict) for verdict in found.verdicts])
    yield Text()
    yield table("fault", [(verdict.mutant.operator, verdict) for verdict in found.verdicts])
    for name, words in (("by", "killed by"), ("on", "killed on")):
        counts = Counter(getattr(verdict, name) for verdict in found.verdicts if verdict.by)
        said = ", ".join(f"{word} {count}" for word, count in counts.most_common())
        yield Text(f"\n{words}: {said or 'nothing'}")
    for item in found.failing:
        yield Text(f"fails without a mutant, and kills none: {item}")
    if found.other_bits:
        yield Text(f"the switches alone change the bits of {len(found.other_bits)} of {found.cases} cases")
    survivors = [verdict for verdict in found.verdicts if verdict.fate == "survived"]
    for verdict in sorted(survivors, key=lambda verdict: (verdict.mutant.file, verdict.mutant.line))[:MOST]:
        yield Text(f"survived {verdict.cases} case{'s' * (verdict.cases != 1)}: {verdict.mutant}")
    if len(survivors) > MOST:
        yield Text(f"and {len(survivors) - MOST} more survived; --json lists them")


def table(name: str, rows: Sequence[tuple[str, Verdict]]) -> Table:
    """Numbers of mutants by fate, a row for each group, and the share killed of those that were reached."""
    counts = Counter((group, verdict.fate) for group, verdict in rows)
    groups = sorted({group for group, _ in rows})
    return Table(
        (name, *FATES, "killed of reached"),
        tuple((group, *(str(counts[group, fate]) for fate in FATES), killed(counts, group)) for group in groups),
    )


def killed(counts: Counter[tuple[str, str]], group: str) -> str:
    """`75 %`."""
    reached = sum(counts[group, fate] for fate in FATES if fate != "not reached")
    return f"{100 * counts[group, 'killed'] / reached:.0f} %" if reached else "-"
