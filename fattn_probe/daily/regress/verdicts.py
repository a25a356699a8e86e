"""Reuse verdicts from earlier runs for cases that would run the same code on the same data.

Only passes are stored; failures are judged and explained each time.
"""

import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fattn_probe.base.digest import short
from fattn_probe.base.documents import Document
from fattn_probe.base.fingerprint import FINGERPRINT
from fattn_probe.cases.device import Target
from fattn_probe.cases.device.origin import Method, figures_of
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.doctor.facts import cpu_flags
from fattn_probe.daily.regress.records import Result, case_fingerprint
from fattn_probe.llama.build.key import kernels_apart
from fattn_probe.llama.build.storage import VERDICTS
from fattn_probe.llama.launch.architecture import arch_number
from fattn_probe.llama.launch.constants import Constants, default_constants, known_constants, vec_adds_in_f16
from fattn_probe.llama.launch.families import MMA_F16, TILE
from fattn_probe.llama.launch.kernel import attention_of
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.machine.run.executed import ExecutedCode
from fattn_probe.machine.run.provenance import versions
from fattn_probe.machine.run.session import Session, arch_of, fingerprint_of
from fattn_probe.verdict.judge.checks import Checks

STORED = Document("stored verdicts", dict[str, Result])
MOST = 6
"""Number of verdicts kept per case, because an edit may be undone, or tried in several places."""
VARIABLES = ("CUDA_", "FATTN_PROBE_", "GGML_", "LD_")
"""The prefixes of the environment variables that a run, or its loader, may read."""


@dataclass(frozen=True)
class Verdicts:
    """The stored verdicts of an entry's cases on a target; `conditions` describes what affects them besides the code.

    `release` is the build number of an unchanged release, None for any other source. Launch records mark a kernel's
    figures (registers and so on) as coming from the source that ran or from a release; verdicts store the latter form.
    Of the source's `constants` (None if unknown), only those of a case's own kernel on `arch` affect its verdict.
    """

    conditions: str
    release: int | None = None
    constants: Constants | None = None
    arch: int = 90

    @classmethod
    def under(cls, session: Session, target: Target, checks: Checks) -> "Verdicts | None":
        """The verdicts for cases that a session runs on a target; None if they cannot be reused.

        They are not reused on a real GPU, with a build from the user, or if an object has several kernels. With random
        orders they are not reused either, because a verdict then also depends on the other cases. The simulator's
        number of host threads is not a condition, because neither bits nor findings depend on it.
        """
        options = session.options
        tree, device, apart = options.tree, target.device, kernels_apart(target.engine, options.flavour)
        if tree is None or device is None or options.build is not None or checks.order or not apart:
            return None
        fingerprint, manifest = fingerprint_of(session, target), session.manifest_for(target)
        judged = replace(fingerprint, tree="", patches=(), needed=(), stamp="", checks=str(checks))
        env = options.simulation.env(device, number := manifest.build_number, released=manifest.released) | target.env
        given = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
        figures = {kernel: str(found.resources) for kernel, found in sorted(figures_of(device.arch, number).items())}
        del env["FATTN_PROBE_RESOURCES"]  # a file with these figures and their origins
        del env["FATTN_PROBE_SIM_THREADS"]
        constants, arch = known_constants(tree), arch_number(arch_of(target))
        build = number if checks.kernels else ""
        words = (*session.kernel_words, build, figures, options.repeat, options.warmup)
        flags = sorted(cpu_flags(Path("/proc/cpuinfo").read_text(errors="replace")))
        machine = (platform.machine(), platform.libc_ver(), flags, versions())
        told = (FINGERPRINT.text(judged), sorted((env | given).items()), vec_adds_in_f16(tree, arch), words, machine)
        release = int(number) if manifest.released and number.isdigit() else None
        return cls(json.dumps(told, default=str), release, constants, arch)

    def taken(self, case: Case, code: ExecutedCode, kernels: Iterable[str]) -> Result | None:
        """The verdict from an earlier run that executed the same code; `kernels` are the case's current launches."""
        for digest, result in self._stored(case).items():
            launches = result.kernels
            if code.kernels(launches) == set(kernels) and self._executed(code, launches) == digest:
                return replace(with_origins(result, self.release, None), reused=True)
        return None

    def of_output(self, case: Case, output: str, launches: str) -> Result | None:
        """The verdict from an earlier run with this output and these launches, which determine the verdict."""
        stored = self._stored(case).items()
        same = (result for digest, result in stored if digest.endswith(f" {self._read(result.kernels)}"))
        earlier = (with_origins(result, self.release, None) for result in same)
        return next((result for result in earlier if (result.output, result.launches) == (output, launches)), None)

    def keep(self, case: Case, code: ExecutedCode, result: Result) -> None:
        """Store the verdict of a run if it can be reused."""
        may = result.status == "pass" and not (result.seconds or result.finding or result.error_map or result.reused)
        if may and (digest := self._executed(code, result.kernels)):
            others = [item for item in self._stored(case).items() if item[0] != digest]
            stored = with_origins(result, None, self.release)
            STORED.remember(VERDICTS, self._key(case), dict([(digest, stored), *others[: MOST - 1]]))

    def _executed(self, code: ExecutedCode, launches: Sequence[LaunchRecord]) -> str:
        """The digest of the code of these launches, and the constants that their judge reads; empty if unknown."""
        digest = code.digest(launches)
        return f"{digest} {self._read(launches)}" if digest else ""

    def _read(self, launches: Sequence[LaunchRecord]) -> str:
        """The constants that the models read to judge these launches: those of their attention kernel."""
        constants = self.constants or default_constants()
        kernel = attention_of(launches, self.arch, constants)
        if kernel is None:
            return str(self.constants is None)
        row_of = {MMA_F16: constants.mma_of, TILE: constants.tile_of}.get(kernel.family)
        row = row_of((kernel.DKQ, kernel.DV, kernel.ncols), self.arch) if row_of else None
        others = (kernel.nbatch_fa, kernel.columns, kernel.sums_in_f32, kernel.max_offset)
        return json.dumps([self.constants is None, row, *others])

    def _key(self, case: Case) -> str:
        return short([self.conditions, case.name, case_fingerprint(case)], 32)

    def _stored(self, case: Case) -> dict[str, Result]:
        found = STORED.remembered(VERDICTS, self._key(case)) or {}
        return {key: one for key, one in found.items() if (one.name, one.digest) == (case.name, case.digest)}


def with_origins(result: Result, old: int | None, new: int | None) -> Result:
    """Mark kernels' figures as coming from build `new` instead of `old`; None stands for the source that ran."""
    launches = [
        replace(launch, origin=replace(launch.origin, build_number=new))
        if launch.origin.build_number == old and launch.origin.method in (Method.MEASURED, Method.ESTIMATED)
        else launch
        for launch in result.kernels
    ]
    return replace(result, launches="\n".join(launch.to_json() for launch in launches))
