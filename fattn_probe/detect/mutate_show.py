"""The fates of mutants as tables and as JSON."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.detect.killing import Verdict
from fattn_probe.detect.mutate import Mutated
from fattn_probe.tables import Table

FATES = ("killed", "survived", "not reached")
MOST = 20  # survivors in the terminal's list


def document(found: Sequence[Mutated]) -> dict[str, Any]:
    """The fates for `--json`."""
    return {
        "runs": [
            {
                "on": item.on,
                "cases": item.cases,
                "compiled": item.compiled,
                "counts": dict(Counter(verdict.fate for verdict in item.verdicts)),
                "other_bits": list(item.other_bits),
                "mutants": [verdict.document() for verdict in item.verdicts],
            }
            for item in found
        ]
    }


def render(found: Sequence[Mutated]) -> RenderableType:
    """For each target: the fates by file and by kind, then the survivors."""
    return Group(*(part for item in found for part in one(item)))


def one(item: Mutated) -> Iterator[RenderableType]:
    """The fates on one target."""
    yield Text(f"{len(item.verdicts)} of {item.compiled} mutants, {item.cases} cases on {item.on}\n")
    yield table("file", [(verdict.mutant.file, verdict) for verdict in item.verdicts])
    yield Text()
    yield table("fault", [(verdict.mutant.operator, verdict) for verdict in item.verdicts])
    by = Counter(verdict.by for verdict in item.verdicts if verdict.by)
    yield Text("\nkilled by: " + (", ".join(f"{word} {count}" for word, count in by.most_common()) or "nothing"))
    if item.other_bits:
        yield Text(f"the switches alone change the bits of {len(item.other_bits)} of {item.cases} cases")
    survivors = [verdict for verdict in item.verdicts if verdict.fate == "survived"]
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
    reached = counts[group, "killed"] + counts[group, "survived"]
    return f"{100 * counts[group, 'killed'] / reached:.0f} %" if reached else "-"
