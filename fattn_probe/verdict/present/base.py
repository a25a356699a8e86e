"""Launches of an edited or patched llama.cpp that differ from those of its base, shown as text and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from fattn_probe.base.errors import BuildError, LostError
from fattn_probe.base.figures import number_of
from fattn_probe.llama.build.ninja import Report
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.machine.run.base import Base, Launches, changed
from fattn_probe.machine.run.command import Work
from fattn_probe.verdict.judge.judgement import Judgement

ON_A_GPU = "launches are compared with a base only on simulated GPUs"
OtherLaunches = tuple[Judgement, tuple[LaunchRecord, ...]]
"""A case whose launches differ, and the launches of the base."""


@dataclass(frozen=True)
class BesideBase:
    """The launches that differ from a base, among `compared` cases; `missing` says which were not compared, and why."""

    base: str
    compared: int
    differ: tuple[OtherLaunches, ...]
    missing: str = ""

    @classmethod
    def joined(cls, parts: Sequence["BesideBase"]) -> "BesideBase | None":
        """The comparisons of several builds combined; None if there are none."""
        differ = tuple(other for part in parts for other in part.differ)
        missing = next((part.missing for part in parts if part.missing), "")
        return cls(parts[0].base, sum(part.compared for part in parts), differ, missing) if parts else None

    def lines(self) -> Iterator[Text]:
        """The differences in words: each appears once, with its number of cases."""
        if self.missing:
            yield Text(f"launches not compared with those of {self.base}: {self.missing}", "yellow")
        if self.differ:
            many = f"{len(self.differ)} of {number_of(self.compared, 'case')}"
            yield Text(f"{many}: launches differ from those of {self.base} (dry runs)", "yellow")
        elif self.compared:
            same = "kernels, grids, blocks and shared memory"
            yield Text(f"{number_of(self.compared, 'case')}: {same} equal those of {self.base} (dry runs)", "dim")
        yield from (Text(f"  {row.case} on {row.on}: {changed(before, row.launches)}") for row, before in self.differ)

    def document(self) -> dict[str, Any]:
        """For JSON: `base`, `compared`, `missing`, and `differ`: case, on, and the launches `before` and `after`."""
        differ = [
            {
                "case": row.case,
                "on": row.on,
                "before": [launch.document() for launch in before],
                "after": [launch.document() for launch in row.launches],
            }
            for row, before in self.differ
        ]
        return {"base": self.base, "compared": self.compared, "missing": self.missing or None, "differ": differ}


def beside_base(base: Base, work: Work, rows: Sequence[Judgement], progress: Report) -> BesideBase:
    """Compare the launches of rows with those of a base on the same simulated GPUs."""
    simulated = {str(target): target for _, targets in work for target in targets if target.engine == "sim"}
    ops = {case.name: case.op.digest for case, _ in work}
    found: dict[str, Launches] = {}
    try:
        for name, target in simulated.items():
            cases = [case for case, targets in work if name in map(str, targets)]
            found[name] = base.launches(cases, target, progress)
    except (BuildError, LostError) as error:
        return BesideBase(base.words, 0, (), str(error))
    known = [row for row in rows if row.on in found]
    ran = [row for row in known if row.launches and ops[row.case] in found[row.on]]
    pairs = ((row, found[row.on][ops[row.case]]) for row in ran)
    why = [ON_A_GPU] if any(target.engine == "cuda" for _, targets in work for target in targets) else []
    if early := len(known) - len(ran):
        why.append(f"{number_of(early, 'case')} ended early")
    different = tuple((row, before) for row, before in pairs if changed(before, row.launches))
    return BesideBase(base.words, len(ran), different, "; ".join(why))
