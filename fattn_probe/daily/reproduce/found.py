"""The case to reproduce and its judgement, from a run, from a capture, or from the history."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fattn_probe.base.activity import Step, quiet
from fattn_probe.base.arrays import F32, F64, Bytes
from fattn_probe.base.errors import InputError, LostError
from fattn_probe.cases import shipped
from fattn_probe.cases.device import Target
from fattn_probe.cases.op.gguf_file import read_gguf
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.cases import Recording, cases_like, read_cases, resolve
from fattn_probe.cases.scenario.from_ops import from_ops
from fattn_probe.daily.ops.parse import OP
from fattn_probe.daily.regress.history import History
from fattn_probe.daily.regress.records import Identity, StoredCase
from fattn_probe.llama.launch.architecture import arch_number, is_arch
from fattn_probe.llama.launch.constants import default_constants
from fattn_probe.llama.launch.geometry import geometry_of
from fattn_probe.machine.run.capture import Capture, read_capture
from fattn_probe.machine.run.provenance import versions
from fattn_probe.machine.run.session import Session
from fattn_probe.verdict.judge.cases import Answers, expect, judged, judged_case
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.judge.expectation import expected_of
from fattn_probe.verdict.judge.judgement import Judgement
from fattn_probe.verdict.measure.limits import Limits, choose_limits
from fattn_probe.verdict.measure.metrics import worst_rows
from fattn_probe.verdict.measure.verdict import Status, judge, upstream_says
from fattn_probe.verdict.truth.reference.adapter import fully_masked_of, reference_of

MOST_SHOWN = 5


@dataclass(frozen=True, eq=False)
class Found:
    """The correct output of a case and its limits; and the judgement of an output, if there is one.

    `judgement` is None for a case that was not run. `provenance` says what ran where; `output` is the computed output.
    """

    reference: F64
    limits: Limits
    judgement: Judgement | None
    provenance: Mapping[str, str]
    output: F32 | None = None

    @property
    def fails(self) -> bool:
        """Whether the output is wrong, or the run ended without one."""
        return self.judgement is not None and fails(self.judgement)

    def worst(self) -> list[dict[str, Any]]:
        """The elements that are farthest from the expected output, one per row: `at`, `found`, `expected`."""
        if self.output is None:
            return []
        with np.errstate(invalid="ignore"):
            off = np.nan_to_num(np.abs(self.output - self.limits.expected), nan=np.inf)
        places = [(*row, int(off[row].argmax())) for row in worst_rows(off.max(axis=3), MOST_SHOWN)]
        return [
            {"at": [*place], "found": float(self.output[place]), "expected": float(self.limits.expected[place])}
            for place in places
        ]


def find(session: Session, case: Case, inputs: Mapping[str, Bytes], target: Target | None, step: Step = quiet) -> Found:
    """Run and judge a case on a target; without one, judge its capture, or find only the expected output."""
    if target is not None:
        subject = judged_case(session, Answers(case, inputs, step), target, Checks(sample="all"))
        result = subject.run()
        judgement = judged(subject, result)
        if judgement.status in (Status.LOST, Status.UNSUPPORTED):
            error = LostError if judgement.status is Status.LOST else InputError
            raise error(f"{case.name} on {target}: {judgement.status}: {judgement.reason}")
        reference, _ = subject.answers.reference
        if not isinstance(result, Capture):
            limits = choose_limits(reference, case.tolerance)
            return Found(reference, limits, judgement, session.provenance(target, case.seed))
        expected, passes = expect(subject.launched(result.launches), result), not fails(judgement)
        limits = choose_limits(reference, case.tolerance, expected, dst=result.dst, passes=passes)
        return Found(reference, limits, judgement, result.provenance, result.dst)
    if isinstance(case.source, Recording) and "dst" in read_gguf(case.source.path).tensors:
        return found_in_capture(case, read_capture(case.source.path))
    reference, tree = reference_of(case.op, inputs, case.name), session.options.tree
    source = {} if tree is None else {"source": tree.spec, "build_number": tree.build_number}
    limits = choose_limits(reference, case.tolerance)  # without a kernel, the scenario's tolerance
    return Found(reference, limits, None, source | versions())


def fails(judgement: Judgement) -> bool:
    """Whether a judgement is a failure."""
    return judgement.status is Status.FAIL


def found_in_capture(case: Case, capture: Capture) -> Found:
    """Judge a recorded output, with the launches that were recorded with it."""
    reference, on = reference_of(case.op, capture.inputs, case.name), capture.provenance.get("device", capture.device)
    expected, arch = None, capture.provenance.get("arch", "")
    if capture.launches and is_arch(arch):
        geometry = geometry_of(case.op, capture.launches, arch_number(arch))
        expected = expected_of(case, capture.inputs, geometry, arch_number(arch), "auto", constants=default_constants())
    masked = fully_masked_of(case.op, capture.inputs)
    judgement = Judgement(
        case=case.name,
        on=on,
        tolerance=case.tolerance,
        verdict=judge(capture.dst, reference, case.tolerance, masked, expected),
        launches=capture.launches,
        upstream=upstream_says(capture.dst, reference),
        missing="" if expected is None else expected.missing,
        digest=case.digest,
        dst=capture.dst,
    )
    limits = choose_limits(reference, case.tolerance, expected, dst=capture.dst, passes=not fails(judgement))
    return Found(reference, limits, judgement, capture.provenance, capture.dst)


UID = re.compile(r"[0-9a-f]{4,32}")
MOST_NAMES = 20


@dataclass(frozen=True)
class PastResult:
    """A case from a run, and the values of `--on`, `--source` and `--patch` that repeat it.

    `file` names the case on a command line; empty for a case that is known only from a run. `tree` is the digest of the
    source's files in the run; empty if it is unknown.
    """

    case: Case
    file: str
    on: str
    source: str
    patches: tuple[str, ...]
    tree: str = ""


def is_uid(word: str) -> bool:
    """Whether a word can be the beginning of a run's name."""
    return UID.fullmatch(word) is not None


def past_result(history: History, uid: str, name: str) -> PastResult:
    """The result of a case, or of the only failed case, in the run whose name begins with `uid`; InputError if none."""
    run = history.run(uid)
    stored = history.cases(run)
    failed = [result.name for result in history.results(run).values() if result.status == "fail"]
    name = name or (failed[0] if len(failed) == 1 else "")
    if name not in stored:
        problem = f"has no case {name!r}" if name else "did not fail in exactly one case, and --case is missing"
        said = ", ".join(failed[:MOST_NAMES]) or "none"
        raise InputError(f"run {run.uid[:8]} {problem}; the failed cases: {said}")
    identity = run.identity
    on = "gpu" if identity.engine == "cuda" else identity.device
    case, file = case_of(stored[name])
    tree = identity.fingerprint.tree if identity.fingerprint else ""
    return PastResult(case, file, on, identity.source, patches_of(identity), tree)


def case_of(stored: StoredCase) -> tuple[Case, str]:
    """The case with a stored case's inputs, and `PastResult.file`; raises InputError if no case still has them."""
    case, word = next((found for found in candidates(stored) if found[0].digest == stored.digest), (None, ""))
    if case is None:
        raise InputError(
            f"{stored.name}: no shipped scenario or suite has this case with the same inputs "
            f"(digest {stored.digest}); name its scenario file instead"
        )
    return replace(case, name=stored.name), word


def candidates(stored: StoredCase) -> Iterator[tuple[Case, str]]:
    """Cases that may be the stored one, each with its name on a command line."""
    if stored.name.startswith(f"{OP}("):
        for separate_V in (False, True):
            yield resolve(from_ops(stored.name, separate_V=separate_V), stored.name, "upstream"), ""
    if file := cases_like(Path(stored.name)).get(stored.name):
        yield from ((case, case.name) for case in read_cases(file))


def patches_of(identity: Identity) -> tuple[str, ...]:
    """The shipped patches of a run, by name; raises InputError for a patch from a user's file."""
    known = {name.rpartition("/")[2]: name for kind in ("fault", "patch") for name in shipped.names(kind)}
    names = {re.sub(r"\.[a-z]$", "", name): re.sub(r"\.[a-z]$", "", full) for name, full in known.items()}
    unknown = [name for name in identity.patches.split() if name not in names]
    if unknown:
        raise InputError(f"the run had a patch {unknown[0]}, which is not shipped; name the scenario, and give --patch")
    return tuple(names[name] for name in identity.patches.split())
