"""Wrong outputs of mutants in files, to measure the diagnosis by: what killed a mutant by its output is run again."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from fattn_probe.detect.bench import Bench
from fattn_probe.detect.killed_by import VERDICT
from fattn_probe.detect.killing import workers
from fattn_probe.detect.mutants import Mutant
from fattn_probe.detect.mutate import Laboratory, OnStep
from fattn_probe.detect.recorded import LARGEST, Recorded, write
from fattn_probe.detect.schemata import switched
from fattn_probe.detect.verdicts import Part, Plan, Verdict
from fattn_probe.run.capture import Capture
from fattn_probe.run.session import Session
from fattn_probe.scenario import Case


def killed_by_output(verdicts: Iterable[Verdict], parts: Sequence[Part], number: int) -> list[Verdict]:
    """The first kills by a wrong output, by digest, in cases of these parts' release builds (0: all)."""
    plain = [part for part in parts if part.entry.flavour == "release" and not part.entry.sanitize]
    known = {(part.name, case.name) for part in plain for case in part.cases}
    found = {one.mutant.digest: one for one in verdicts if one.by == VERDICT and (one.on, one.case) in known}
    return [found[digest] for digest in sorted(found)][: number or None]


def parts_with(parts: Sequence[Part], kills: Iterable[Verdict]) -> tuple[Part, ...]:
    """The parts with only those of their cases that killed something."""
    wanted = {(one.on, one.case) for one in kills}
    left = (replace(part, cases=tuple(c for c in part.cases if (part.name, c.name) in wanted)) for part in parts)
    return tuple(part for part in left if part.cases)


def keep_outputs(plan: Plan, session: Session, kills: Sequence[Verdict], folder: Path, say: OnStep) -> int:
    """Run mutants in the cases that killed them, and keep their outputs in a folder; returns how many there are."""
    assert session.options.tree is not None
    wanted = {one.mutant.digest: (one.on, one.case) for one in kills}
    every = switched(session.options.tree, session.options.patches, frozenset()).mutants
    others = {mutant.digest for mutant in every if mutant.digest not in wanted}
    laboratory = Laboratory(replace(plan, parts=parts_with(plan.parts, kills)), session, say, others)
    places = {(laboratory.plan.parts[number].name, case.name): (number, case) for number, case in laboratory.items}
    by_place: dict[tuple[str, str], list[Mutant]] = defaultdict(list)
    for mutant in laboratory.schemata.mutants:
        if mutant.digest in wanted:
            by_place[wanted[mutant.digest]].append(mutant)
    say(f"running {sum(map(len, by_place.values()))} mutants in {len(by_place)} cases")
    with workers(laboratory.works) as pool:
        runs = [pool.submit(keep, *places[place], mutants, folder) for place, mutants in by_place.items()]
        return sum(run.result() for run in runs)


def keep(number: int, case: Case, mutants: Sequence[Mutant], folder: Path) -> int:
    """Keep the outputs of a case with each of some mutants, on this process's bench; returns how many there are."""
    kept = 0
    for mutant in mutants:
        place = Bench.here.place(number, case)
        found = place.captured(place.child(mutant.id).outcome(*place.words))
        if isinstance(found, Capture) and found.dst.nbytes <= LARGEST:
            launches = "\n".join(replace(launch, text="").to_json() for launch in found.launches)
            about = (str(mutant), mutant.digest, place.work.name, case.name, case.digest, str(place.work.target))
            write(Recorded(*about, launches, found.dst), folder / f"{mutant.digest[:16]}.npz")
            kept += 1
    return kept
