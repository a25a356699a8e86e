"""Wrong outputs of planted faults in files, so that they can be diagnosed again without a build."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from fattn_probe.arrays import F32
from fattn_probe.compare.diagnose.diagnosis import Diagnosis, Evidence, diagnose
from fattn_probe.compare.judge.cases import expected_of
from fattn_probe.compare.judge.judgement import Judgement
from fattn_probe.compare.judge.verdict import Status, judge
from fattn_probe.device import Device, load_devices
from fattn_probe.device.target import parse_target
from fattn_probe.errors import InputError
from fattn_probe.files import replacing
from fattn_probe.launch.architecture import arch_number
from fattn_probe.launch.geometry import geometry_of
from fattn_probe.launch.record import parse_launches
from fattn_probe.regress.suite import cases_of, load_suite
from fattn_probe.run.capture import Capture
from fattn_probe.run.inputs import inputs_of
from fattn_probe.run.session import arch_of
from fattn_probe.scenario import Case, expand, load
from fattn_probe.source.faults import corpus
from fattn_probe.truth.reference.adapter import reference_of

LARGEST = 600_000
"""Bytes of the largest output that is kept."""
MOST = 4
"""Outputs that are kept of one fault and suite."""


@dataclass(frozen=True, eq=False)
class Recorded:
    """A wrong output: the fault and the digest of its patch, the suite, the case, and the launches as JSON lines."""

    fault: str
    patch: str
    suite: str
    case: str
    digest: str
    on: str
    launches: str
    dst: F32

    @property
    def about(self) -> dict[str, str]:
        """Everything but the output."""
        return {key: value for key, value in vars(self).items() if key != "dst"}


@dataclass(frozen=True)
class Keep:
    """The folder for the wrong outputs of one fault and suite."""

    folder: Path
    fault: str
    patch: str
    suite: str

    def add(self, judgement: Judgement) -> None:
        """Keep a wrong output, if it is small and one of the first."""
        dst, start = judgement.dst, f"{self.fault}.{self.suite}."
        right = judgement.verdict.status is not Status.FAIL  # a right output can fail a check of its bits
        if right or judgement.finding is not None or dst is None or dst.nbytes > LARGEST:
            return
        if len(list(self.folder.glob(f"{start}*.npz"))) < MOST:
            launches = "\n".join(replace(launch, text="").to_json() for launch in judgement.launches)
            about = (self.fault, self.patch, self.suite, judgement.case, judgement.digest, judgement.on)
            path = self.folder / f"{start}{judgement.digest}.npz"
            write(Recorded(*about, launches, dst), path)


def write(recorded: Recorded, path: Path) -> None:
    """Write a recorded output, completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, dst=recorded.dst, about=np.array(json.dumps(recorded.about)))


def read(path: Path) -> Recorded:
    """Read a recorded output; InputError if the file has none."""
    try:
        with path.open("rb") as opened, np.load(opened) as file:
            return Recorded(**json.loads(str(file["about"])), dst=file["dst"])
    except (EOFError, KeyError, TypeError, ValueError, BadZipFile) as error:
        raise InputError(f"{path}: no recorded output: {error}") from error


def diagnosed_again(
    recorded: Recorded, cases: Mapping[str, Case], devices: Mapping[str, Device] | None = None
) -> Diagnosis | None:
    """Diagnose a recorded output of the default source; None if it is right. InputError if no case has its digest.

    `cases` are keyed by digest; `devices` are those of the catalogue unless given.
    """
    case = cases.get(recorded.digest)
    if case is None:
        raise InputError(f"{recorded.fault}: no case with the digest of {recorded.case}")
    arch = arch_number(arch_of(parse_target(recorded.on, load_devices() if devices is None else devices)))
    with inputs_of(case) as inputs:
        launches = parse_launches(recorded.launches)
        about = (recorded.case, recorded.digest, case.op, inputs, recorded.dst, launches, "wall", (), "CUDA", "sim")
        capture = Capture(*about, {})
        expected = expected_of(case, inputs, capture, arch, "auto")
        verdict = judge(recorded.dst, reference_of(case.op, inputs), case.tolerance, expected=expected)
        if verdict.deviation is None or not verdict.deviation.wrong.any():
            return None
        geometry = geometry_of(case.op, launches, arch)
        return diagnose(Evidence(case, inputs, recorded.dst, verdict.deviation, geometry))


def devices_of(suites: Iterable[Path]) -> dict[str, Device]:
    """The GPUs of the catalogue, and those that suites bring along."""
    files = {path.parent / entry.devices for path in suites for entry in load_suite(path).parts if entry.devices}
    return dict(load_devices()) | {id: device for file in sorted(files) for id, device in load_devices(file).items()}


def cases_by_digest(suites: Iterable[Path] = ()) -> dict[str, Case]:
    """The cases in the heads of the corpus, and those of suites, by their digest."""
    cases = [case for fault in corpus() for shown in fault.shows for case in expand(load(shown.scenario))]
    cases += [case for path in suites for entry in load_suite(path).parts for case in cases_of(entry, path.parent)]
    return {case.digest: case for case in cases}
