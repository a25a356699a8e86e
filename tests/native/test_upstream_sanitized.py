"""llama.cpp's own kernels under AddressSanitizer and UndefinedBehaviorSanitizer, fibers and all."""

from pathlib import Path

import pytest

import fattn_probe
from fattn_probe.compare.judge.metrics import nmse
from fattn_probe.device import load_devices, parse_target
from fattn_probe.run.outcome import Ran
from fattn_probe.run.session import RunOptions, Session
from fattn_probe.scenario import expand, load
from fattn_probe.scenario.inputs import make_inputs
from fattn_probe.source import DEFAULT_SOURCE, resolve
from fattn_probe.truth.reference.adapter import reference_of

SCENARIOS = Path(fattn_probe.__file__).parent.parent / "scenarios"


@pytest.mark.build
@pytest.mark.night  # tests/native/sanitized.cu has fibers, host code and faults under both sanitizers in minutes less
@pytest.mark.network
def test_a_correct_kernel_is_clean():
    session = Session(RunOptions(resolve(DEFAULT_SOURCE), sanitize=("address", "undefined")))
    (case,) = expand(load(SCENARIOS / "gqa.yaml"))
    inputs = make_inputs(case)
    outcome = session.run(case, inputs, parse_target("sim:h200", load_devices()))
    assert isinstance(outcome, Ran), outcome
    assert "runtime error" not in outcome.warnings
    assert nmse(outcome.result.dst, reference_of(case.op, inputs)) < 1e-6
