"""llama.cpp's kernels have the same bits with lanes in step, and pass under sanitizers, fibers and all."""

import numpy as np
import pytest

from fattn_probe.cases.scenario import expand, load
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.build import RUNNER
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from fattn_probe.machine.run.capture import make_case_file
from fattn_probe.machine.run.outcome import Ran
from fattn_probe.machine.run.runner import forked_runner
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.machine.run.simulator import Simulation
from fattn_probe.verdict.measure.metrics import nmse
from fattn_probe.verdict.truth.reference.adapter import reference_of
from tests.made import H200, SCENARIOS, captured, shipped, target

pytestmark = [pytest.mark.build, pytest.mark.network]

NIGHT = pytest.mark.night  # a kernel is compiled for each
PLAIN = {"FATTN_PROBE_SIM_IN_STEP": "1", "FATTN_PROBE_SIM_PORTABLE": "1"}


def output(session, case, device):
    return captured(session, case, target(f"sim:{device}")).dst


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("h200", "gqa"),
        *(pytest.param("h200", name, marks=NIGHT) for name in ("mha", "mla", "softcap", "sinks", "prefill")),
        *(pytest.param(device, "gqa", marks=NIGHT) for device in ("rtx2060", "rtx4070", "a100", "rtx5090")),
    ],
)
def test_bits_do_not_depend_on_how_the_simulator_runs(session, monkeypatch, device, name):
    case = expand(load(SCENARIOS / f"{name}.yaml"))[0]
    fast = output(session, case, device)
    for variable, value in PLAIN.items():
        monkeypatch.setenv(variable, value)
    np.testing.assert_array_equal(output(session, case, device).view(np.uint32), fast.view(np.uint32))


@pytest.mark.night  # tests/native/sanitized.cu has fibers, host code and faults under both sanitizers in minutes less
def test_a_correct_kernel_is_clean():
    session = Session(RunOptions(resolve(DEFAULT_SOURCE), sanitize=("address", "undefined")))
    case = shipped("gqa")
    inputs = make_inputs(case)
    outcome = session.run(case, inputs, H200)
    assert isinstance(outcome, Ran), outcome
    assert "runtime error" not in outcome.warnings
    assert nmse(outcome.result.dst, reference_of(case.op, inputs)) < 1e-6


@pytest.mark.night
def test_a_correct_kernel_in_a_child_process_leaks_nothing(tmp_path):
    options = RunOptions(resolve(DEFAULT_SOURCE), sanitize=("address", "undefined"), simulation=Simulation(threads=1))
    session = Session(options)
    case = shipped("gqa")
    session.run(case, make_case_file(case, tmp_path / "case.gguf"), H200)  # compiles what it needs
    runner, words = session.build_for(H200).program(RUNNER), ("--backend", H200.backend)
    with forked_runner(runner, words, env=session.env(H200), folder=tmp_path, timeout=60) as forked:
        child = forked.run(tmp_path / "case.gguf")
    assert child.code == 0, child.said.read_text()
