"""`compare` on the simulated H200: shipped kernels pass, planted faults do not, and are named."""

import pytest

from fattn_probe.cases.device import load_devices
from fattn_probe.cases.scenario import expand, load, loads
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.launch.constants import default_constants
from fattn_probe.llama.launch.geometry import geometry_of
from fattn_probe.llama.source import patches
from fattn_probe.machine.run.outcome import Finding, Ran
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.verdict.judge.cases import judge_cases
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.judge.expectation import expected_of
from fattn_probe.verdict.measure.metrics import nmse
from fattn_probe.verdict.measure.verdict import Status, judge, upstream_says
from fattn_probe.verdict.truth.reference.adapter import reference_of
from tests import made
from tests.made import CAUSAL, CPU, H200, SCENARIOS, at_night, shape
from tests.planted import FAULTS, case_of, planted

pytestmark = [pytest.mark.build, pytest.mark.network]

DEVICES = load_devices()
LONG_CACHE = shape(64, 16, 2, 3, 32768, CAUSAL)
"""stream-K seams within tiles"""


def rows_of(session, text, targets=(H200,), options=None):
    case = expand(load(SCENARIOS / text) if text.endswith(".yaml") else loads(text, "case.yaml"))[0]
    return list(judge_cases(session, [(case, targets)], options))


@pytest.mark.slow  # ggml's CPU backend is compiled
def test_several_backends_in_one_go(session):
    sim, cpu = rows_of(session, "gqa.yaml", (H200, CPU))
    assert (sim.status, cpu.status) == (Status.PASS, Status.PASS)
    assert sim.verdict.design.equal_bits > 0.999
    assert 0.5 < sim.verdict.design.rmse_by_predicted < 1.5
    assert cpu.verdict.design is None
    assert "CPU backend has no error model" in cpu.missing


@pytest.mark.slow  # smaller batches have kernels of their own
def test_a_correct_kernel_is_deterministic_and_batches_differ_by_their_kernels(session):
    (row,) = rows_of(session, "gqa.yaml", options=Checks(repeat=3, batch_invariance=3))
    deterministic, invariant = row.checks
    assert deterministic.passes
    assert "3 runs with different orders of warps" in deterministic.reason
    assert not invariant.passes
    assert "in the batch with flash_attn_ext_f16<64,64,8,8" in invariant.reason
    assert row.status is Status.PASS


@pytest.mark.slow
@pytest.mark.parametrize("n_kv", [4096, *at_night(512, 2048, 16384)])
def test_all_planted_faults_are_caught(session, n_kv):
    case = case_of(n_kv)
    inputs = make_inputs(case)
    capture = session.capture(case, inputs, H200)
    reference, geometry = reference_of(case.op, inputs), geometry_of(case.op, capture.launches, 90)
    expected = expected_of(case, inputs, geometry, 90, "always", constants=default_constants())
    assert judge(capture.dst, reference, case.tolerance, expected=expected).status is Status.PASS
    upstream = 0
    for fault in FAULTS:
        dst = planted(fault, case, inputs, capture.dst, geometry)
        assert judge(dst, reference, case.tolerance, expected=expected).status is Status.FAIL, fault.__name__
        upstream += not upstream_says(dst, reference).passes
    assert upstream <= 5


@pytest.mark.night
def test_a_stream_k_fault_is_placed_at_its_seams(tree):
    patched = Session(RunOptions(tree, patches=(patches.find("fault-stream-k-seam", tree),)))
    (row,) = rows_of(patched, LONG_CACHE)
    assert row.status is Status.FAIL
    said = row.diagnosis.causes[0]
    assert said.cause.words == "the KV step before each seam of blocks is left out"
    assert said.cause.explained > 0.99
    assert row.diagnosis.worst[0].blocks[0] in (0, 132)


def outcome_of(tree, flavour, *names):
    """Run the scenario with patches, and measure its output."""
    applied = tuple(patches.find(name, tree) for name in names)
    case = made.case_of(shape(64, 16, 2, 3, 256, CAUSAL))
    inputs = make_inputs(case)
    outcome = Session(RunOptions(tree, flavour=flavour, patches=applied)).run(case, inputs, H200)
    return outcome, nmse(outcome.result.dst, reference_of(case.op, inputs)) if isinstance(outcome, Ran) else None


@pytest.mark.night  # CI judges others in test_regress_cli.py, test_fuzz_cli.py and test_checked_faults.py
@pytest.mark.parametrize("flavour", ["release", "check"])
def test_a_barrier_that_a_kernel_lacks(tree, flavour):
    _, right = outcome_of(tree, flavour)
    assert right < 1e-6
    outcome, wrong = outcome_of(tree, flavour, "fault-missing-syncthreads")
    if flavour == "release":
        assert isinstance(outcome, Ran)
        assert not wrong < 3e-5  # the tolerance of the shipped scenarios; NaN, of rows masked by mistake, is wrong too
    else:
        assert isinstance(outcome, Finding)
        assert outcome.kind == "race"
        assert "flash_attn_ext_f16" in outcome.kernel
        assert "fattn-mma-f16.cuh:" in outcome.frames[0]
