"""Files with wrong outputs that faults and mutants cause, which can be diagnosed again without a build."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from fattn_probe.base.activity import Step
from fattn_probe.base.arrays import F32
from fattn_probe.base.errors import InputError, LostError
from fattn_probe.base.files import replacing
from fattn_probe.base.workers import Died
from fattn_probe.cases.device import load_devices
from fattn_probe.cases.device.target import parse_target
from fattn_probe.cases.scenario import Case, expand, load
from fattn_probe.daily.regress.results import launches_text
from fattn_probe.daily.regress.suite import cases_of, load_suite
from fattn_probe.lab.detect.mutants import Mutant
from fattn_probe.lab.detect.mutate import build_mutants
from fattn_probe.lab.detect.schedule import workers
from fattn_probe.lab.detect.schema import switched
from fattn_probe.lab.detect.verdicts import MutantVerdict, MutationPlan, SuitePart
from fattn_probe.lab.detect.worker import Worker
from fattn_probe.llama.launch.architecture import arch_number
from fattn_probe.llama.launch.constants import default_constants
from fattn_probe.llama.launch.geometry import geometry_of
from fattn_probe.llama.launch.record import parse_launches
from fattn_probe.llama.source.faults import corpus
from fattn_probe.machine.run.capture import Capture, inputs_of
from fattn_probe.machine.run.session import Session, arch_of
from fattn_probe.verdict.diagnose.diagnosis import Diagnosis, Evidence, diagnose
from fattn_probe.verdict.judge.expectation import expected_of
from fattn_probe.verdict.judge.judgement import Judgement
from fattn_probe.verdict.measure.verdict import Status, judge
from fattn_probe.verdict.truth.reference.adapter import reference_of

LARGEST = 600_000
"""The largest size of a kept output, in bytes."""
MOST = 4
"""The largest number of outputs that are kept for one fault and suite."""


@dataclass(frozen=True, eq=False)
class KeptOutput:
    """A wrong output: the fault and the digest of its patch, the suite, the case, and the launches as JSON lines."""

    fault: str
    patch: str
    suite: str
    case: str
    digest: str
    on: str
    launches: str
    dst: F32


@dataclass(frozen=True)
class Keep:
    """The folder for the wrong outputs of one fault and suite."""

    folder: Path
    fault: str
    patch: str
    suite: str

    def add(self, found: Judgement) -> None:
        """Keep a wrong output if it is small and among the first MOST."""
        start = f"{self.fault}.{self.suite}."
        correct = found.verdict.status is not Status.FAIL  # a correct output can still fail a check of its bits
        if correct or found.finding is not None or found.dst is None or found.dst.nbytes > LARGEST:
            return
        if len(list(self.folder.glob(f"{start}*.npz"))) < MOST:
            about = (self.fault, self.patch, self.suite, found.case, found.digest, found.on)
            kept = KeptOutput(*about, launches_text(found.launches), found.dst)
            write(kept, self.folder / f"{start}{found.digest}.npz")


def write(recorded: KeptOutput, path: Path) -> None:
    """Write a recorded output, completely or not at all."""
    about = {key: value for key, value in vars(recorded).items() if key != "dst"}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, dst=recorded.dst, about=np.array(json.dumps(about)))


def read(path: Path) -> KeptOutput:
    """Read a recorded output; InputError if the file does not contain one."""
    try:
        with path.open("rb") as opened, np.load(opened) as file:
            return KeptOutput(**json.loads(str(file["about"])), dst=file["dst"])
    except (EOFError, KeyError, TypeError, ValueError, BadZipFile) as error:
        raise InputError(f"{path}: no recorded output: {error}") from error


def diagnosed_again(recorded: KeptOutput, cases: Mapping[str, Case]) -> Diagnosis | None:
    """Diagnose a recorded output of the default source; None if it is correct. InputError if no case has its digest."""
    case = cases.get(recorded.digest)
    if case is None:
        raise InputError(f"{recorded.fault}: no case with the digest of {recorded.case}")
    arch = arch_number(arch_of(parse_target(recorded.on, load_devices())))
    with inputs_of(case) as inputs:
        geometry = geometry_of(case.op, parse_launches(recorded.launches), arch)
        expected = expected_of(case, inputs, geometry, arch, "auto", constants=default_constants())
        verdict = judge(recorded.dst, reference_of(case.op, inputs), case.tolerance, expected=expected)
        if verdict.deviation is None or not verdict.deviation.wrong.any():
            return None
        return diagnose(Evidence(case, inputs, recorded.dst, verdict.deviation, geometry))


def cases_by_digest(suites: Iterable[Path]) -> dict[str, Case]:
    """The cases named in the headers of the corpus, and the cases of suites, by digest."""
    cases = [case for fault in corpus() for shown in fault.shows for case in expand(load(shown.scenario))]
    cases += [case for path in suites for entry in load_suite(path).parts for case in cases_of(entry, path.parent)]
    return {case.digest: case for case in cases}


def killed_by_output(verdicts: Iterable[MutantVerdict], parts: Sequence[SuitePart], number: int) -> list[MutantVerdict]:
    """The first `number` kills by a wrong output (0: all), by digest, in cases of these parts in release builds."""
    plain = [part for part in parts if part.entry.flavour == "release" and not part.entry.sanitize]
    known = {(part.name, case.name) for part in plain for case in part.cases}
    found = {one.mutant.digest: one for one in verdicts if one.by == "verdict" and (one.on, one.case) in known}
    return [found[digest] for digest in sorted(found)][: number or None]


def keep_outputs(plan: MutationPlan, session: Session, kills: Sequence[MutantVerdict], folder: Path, say: Step) -> int:
    """Run mutants in the cases that killed them, and keep their outputs in a folder; returns the number of outputs."""
    assert session.options.tree is not None
    wanted = {one.mutant.digest: (one.on, one.case) for one in kills}
    places = set(wanted.values())
    parts = (
        replace(part, cases=tuple(case for case in part.cases if (part.name, case.name) in places))
        for part in plan.parts
    )
    plan = replace(plan, parts=tuple(part for part in parts if part.cases))
    every = switched(session.options.tree, session.options.patches, frozenset()).mutants
    built = build_mutants(plan, session, say, {mutant.digest for mutant in every if mutant.digest not in wanted})
    by_place: dict[tuple[str, str], list[Mutant]] = defaultdict(list)
    for mutant in built.schema.mutants:
        if mutant.digest in wanted:
            by_place[wanted[mutant.digest]].append(mutant)
    say(f"running {sum(map(len, by_place.values()))} mutants in {len(by_place)} cases")
    with workers(built.parts) as pool:
        tasks = (
            partial(keep, number=number, case=case, mutants=mutants, folder=folder)
            for number, case in built.cases
            if (mutants := by_place.get((plan.parts[number].name, case.name)))
        )
        kept = 0
        for task, number in pool.answers(tasks):
            if isinstance(number, Died):
                raise LostError(f"{task.keywords['case'].name}: {number.how}")
            kept += number
        return kept


def keep(worker: Worker, number: int, case: Case, mutants: Sequence[Mutant], folder: Path) -> int:
    """Keep the outputs of a case with each of several mutants; returns the number of outputs."""
    kept = 0
    for mutant in mutants:
        prepared = worker.prepared(number, case)
        found, part = prepared.captured(prepared.child(mutant.id).outcome(*prepared.words)), prepared.part
        if isinstance(found, Capture) and found.dst.nbytes <= LARGEST:
            about = (str(mutant), mutant.digest, part.name, case.name, case.digest, str(part.target))
            write(KeptOutput(*about, launches_text(found.launches), found.dst), folder / f"{mutant.digest[:16]}.npz")
            kept += 1
    return kept
