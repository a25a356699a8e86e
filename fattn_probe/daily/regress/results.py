"""Turn a judgement into a result for the history."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from fattn_probe.base.errors import BuildError, InputError, LostError
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.regress.records import Result, packed_map_of
from fattn_probe.daily.regress.verdicts import Verdicts
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.machine.run.capture import Capture, FiledInputs, inputs_of
from fattn_probe.machine.run.session import Session
from fattn_probe.verdict.diagnose.diagnosis import Diagnosis
from fattn_probe.verdict.judge.cases import Answers, judged, judged_case
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.judge.judgement import Judgement
from fattn_probe.verdict.measure.verdict import Verdict

BY_PREDICTION = ("error_by_bound", "rmse_by_predicted")
BY_MODEL = ("off_model", "equal_bits")
CHECKS = Checks()
OnResult = Callable[[Result, int, int], None]
"""Called with a result, the number of results so far, and the planned number."""


@dataclass
class LastAnswers:
    """A cache of the last case's inputs and exact answer, since a suite judges a case on several GPUs."""

    last: Answers | None = None

    @contextmanager
    def of(self, case: Case) -> Iterator[Answers]:
        """The answers for a case; raises InputError if its inputs cannot be read."""
        if self.last is None or self.last.case != case:
            self.last = None
            with inputs_of(case) as inputs:
                answers = Answers(case, inputs)
                self.last = None if isinstance(inputs, FiledInputs) else answers
                yield answers
        else:
            yield self.last


def result_of(
    session: Session,
    case: Case,
    target: Target,
    checks: Checks = CHECKS,
    *,
    timed: bool = True,
    verdicts: Verdicts | None = None,
    diagnosed: bool = True,
    kept: LastAnswers | None = None,
) -> Result:
    """Run and judge one case as `compare` does; if either step raises an error, the case is lost.

    `timed` is False if other processes share the GPU, which makes its times meaningless. An output that is already in
    `verdicts` is not judged again. Unless `diagnosed`, no cause is searched for. `kept` caches the last answers.
    """
    try:
        with (kept or LastAnswers()).of(case) as answers:
            subject = replace(judged_case(session, answers, target, checks), diagnosed=diagnosed)
            ran = subject.run()
            if verdicts is not None and checks.of_one_run and isinstance(ran, Capture):
                earlier = verdicts.of_output(case, subject.digest_of(ran), launches_text(ran.launches))
                if earlier is not None:
                    return earlier
            judgement = judged(subject, ran)
    except (BuildError, InputError, LostError) as error:
        return Result.lost(case, str(error))
    return recorded(judgement, timed=timed and target.engine == "cuda")


def recorded(judgement: Judgement, *, timed: bool) -> Result:
    """Convert a judgement to a result for the history; keeps the times only if `timed`."""
    return Result(
        name=judgement.case,
        digest=judgement.digest,
        status=judgement.status,
        reason=judgement.reason.partition("\n")[0],
        metrics=metrics_of(judgement.verdict),
        output=judgement.output,
        launches=launches_text(judgement.launches),
        seconds=judgement.seconds if timed else (),
        failure="" if judgement.status == "pass" else judgement.reason,
        error_map=packed_map_of(judgement),
        warning=judgement.warning,
        missing=judgement.missing,
        sampled=judgement.sampled,
        checks=judgement.checks,
        finding=judgement.finding,
        known=judgement.known,
        diagnosis=first_cause(judgement.diagnosis),
    )


def launches_text(launches: Iterable[LaunchRecord]) -> str:
    """The launches of a run as JSON lines."""
    return "\n".join(replace(launch, text="").to_json() for launch in launches)


def first_cause(diagnosis: Diagnosis | None) -> str:
    """The first cause in a diagnosis, in words; empty if it has none."""
    return str(diagnosis.causes[0].cause) if diagnosis is not None and diagnosis.causes else ""


def metrics_of(verdict: Verdict) -> dict[str, object]:
    """A verdict's metrics for JSON; NaN and infinities are null."""
    if verdict.metrics is None:
        return {}
    known = verdict.design if verdict.metrics.all_finite else None  # a NaN or infinity has no bounded error
    design = {name: getattr(known, name, None) for name in BY_PREDICTION}
    design |= {name: getattr(verdict.design, name, None) for name in BY_MODEL}
    return {name: _plain(value) for name, value in (asdict(verdict.metrics) | design).items()}


def _plain(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int | None) else str(value)
