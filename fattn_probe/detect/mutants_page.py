"""A table of what several suites kill of the same mutants, from the JSON of `fattn-probe mutate`."""

from collections.abc import Iterable, Mapping
from typing import Any

from fattn_probe.detect.mutants import Mutant

Report = Mapping[str, Any]
HELD_OUT = "held out"


def fates(report: Report) -> dict[str, tuple[Mutant, str]]:
    """By digest, the mutants of a report with their fates."""
    found = ((Mutant(**item["mutant"]), item["fate"]) for item in report["mutants"])
    return {mutant.digest: (mutant, fate) for mutant, fate in found}


def common(reports: Iterable[Report]) -> dict[str, Mutant]:
    """By digest, the mutants that every report has, less those that are argued equivalent."""
    every = [fates(report) for report in reports]
    return {
        digest: mutant
        for digest, (mutant, fate) in every[0].items()
        if all(digest in found and found[digest][1] != "equivalent" for found in every)
    }


def page(reports: Mapping[str, Report]) -> str:
    """The table: rows for files, for all, and for the half by which no case was chosen; a column for each report."""
    mutants = common(reports.values())
    files = sorted({mutant.file for mutant in mutants.values()})
    rows = [(f"`{file}`", [d for d, mutant in mutants.items() if mutant.file == file]) for file in files]
    rows += [("all", list(mutants)), (HELD_OUT, [digest for digest in mutants if int(digest, 16) % 2])]
    lines = ["| mutants of | number | " + " | ".join(reports) + " |", "| --- |" + " --- |" * (len(reports) + 1)]
    every = [fates(report) for report in reports.values()]
    for name, digests in rows:
        killed = [sum(found[digest][1] == "killed" for digest in digests) for found in every]
        lines.append(
            f"| {name} | {len(digests)} | " + " | ".join(share(count, len(digests)) for count in killed) + " |"
        )
    return "\n".join(lines) + "\n"


def share(count: int, of: int) -> str:
    """`75.0 % (3)`."""
    return f"{100 * count / of:.1f} % ({count})" if of else "-"
