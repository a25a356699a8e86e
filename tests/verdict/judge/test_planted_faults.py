"""Each planted fault is found on the simulated H200: by the checker, or by the distance from the reference."""

import pytest

from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.scenario import expand, loads
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.source import DEFAULT_SOURCE, patches, resolve
from fattn_probe.machine.run.outcome import Fault, Ran
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.verdict.measure.metrics import nmse
from fattn_probe.verdict.truth.reference.adapter import reference_of

# CI judges such faults in test_regress_cli.py, test_fuzz_cli.py and test_checked_faults.py.
pytestmark = [pytest.mark.build, pytest.mark.night, pytest.mark.network]

# Three queries on eight heads a K/V head: one kernel for all, <64,64,4,8>, whose last tile has room for a fourth query
SCENARIO = "version: 1\nabout: shows a planted fault\nhsk: 64\nn_head: 16\nn_head_kv: 2\nn_q: 3\nmask: {kind: causal}\n"
SHORT = SCENARIO + "n_kv: 256\n"
LONG_CACHE = SCENARIO + "n_kv: 32768\n"
PADDED_MASKS = SCENARIO + "n_kv: 256\nn_seq: 4\nlayout: {mask: {pad: 64}}\n"
H200 = parse_target("sim:h200", load_devices())


def outcome_of(text, patch=None, flavour="release"):
    """Run a scenario's only case, with a patch or without, and measure its output."""
    tree = resolve(DEFAULT_SOURCE)
    applied = (patches.find(patch, tree),) if patch else ()
    session = Session(RunOptions(tree, flavour=flavour, patches=applied))
    (case,) = expand(loads(text))
    inputs = make_inputs(case)
    outcome = session.run(case, inputs, H200)
    return outcome, nmse(outcome.result.dst, reference_of(case.op, inputs)) if isinstance(outcome, Ran) else None


@pytest.mark.parametrize(
    ("patch", "text"),
    [
        ("fault-stream-k-seam", LONG_CACHE),
        ("fault-missing-syncthreads", SHORT),
        ("fault-mask-stride", PADDED_MASKS),
    ],
)
def test_fault_makes_the_output_wrong(patch, text):
    _, right = outcome_of(text)
    assert right < 1e-6
    outcome, wrong = outcome_of(text, patch)
    assert isinstance(outcome, Ran)
    assert not wrong < 3e-5  # the tolerance of the shipped scenarios; NaN, of rows masked by mistake, is wrong too


def test_missing_bounds_check_is_an_access_out_of_bounds():
    _, right = outcome_of(SHORT)
    assert right < 1e-6
    outcome, _ = outcome_of(SHORT, "fault-tail-queries")
    assert isinstance(outcome, Fault)
    assert outcome.kind == "out-of-bounds"
    assert "flash_attn_ext_f16" in outcome.kernel
    assert "fattn-mma-f16.cuh:" in outcome.frames[0]


def test_missing_barrier_is_a_race():
    _, right = outcome_of(SHORT, flavour="check")
    assert right < 1e-6
    outcome, _ = outcome_of(SHORT, "fault-missing-syncthreads", "check")
    assert isinstance(outcome, Fault)
    assert outcome.kind == "race"
    assert "flash_attn_ext_f16" in outcome.kernel
    assert "fattn-mma-f16.cuh:" in outcome.frames[0]
