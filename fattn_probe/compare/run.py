"""Run cases on targets, and judge each output by the exact reference."""

from collections.abc import Iterator

from fattn_probe.compare.command import CaptureLike, Row, compare_case
from fattn_probe.compare.outcome import verdict_without_output
from fattn_probe.compare.verdict import Verdict
from fattn_probe.reference.adapter import fully_masked_of, reference_of
from fattn_probe.run.capture import Capture
from fattn_probe.run.command import Work
from fattn_probe.run.outcome import Ran
from fattn_probe.run.session import Session
from fattn_probe.scenario import make_inputs


def compare_work(session: Session, work: Work) -> Iterator[Row]:
    """A row for each case and target, as soon as it is known."""
    for case, targets in work:
        inputs = make_inputs(case)
        outcomes: dict[str, CaptureLike | Verdict] = {}
        for target in targets:
            result = session.capture(case, inputs, target)
            if isinstance(result, Capture):
                outcomes[str(target)] = result
            elif not isinstance(result, Ran):
                outcomes[str(target)] = verdict_without_output(result)
        yield from compare_case(case, outcomes, reference_of(case, inputs), fully_masked_of(case, inputs))
