"""Each planted fault is found on the simulated H200: by the checker, or by the distance from the reference."""

import pytest

from fattn_probe.compare.metrics import nmse
from fattn_probe.device import load_devices, parse_target
from fattn_probe.reference.adapter import reference_of
from fattn_probe.run.outcome import Fault, Ran
from fattn_probe.run.session import RunOptions, Session
from fattn_probe.scenario import expand, loads, make_inputs
from fattn_probe.source import DEFAULT_SOURCE, patches, resolve

SCENARIO = "version: 1\nabout: shows a planted fault\nhsk: 64\n"
TWO_QUERIES = SCENARIO + "n_head: 16\nn_head_kv: 2\nn_q: 2\nn_kv: 256\nmask: {kind: causal}\n"
SEVEN_QUERIES = SCENARIO + "n_head: 14\nn_head_kv: 2\nn_q: 7\nn_kv: 256\nmask: {kind: causal}\n"
LONG_CACHE = SCENARIO + "n_head: 16\nn_head_kv: 2\nn_q: 8\nn_kv: 8192\nmask: {kind: none}\n"
PADDED_MASKS = (
    SCENARIO
    + "n_head: 16\nn_head_kv: 2\nn_q: 8\nn_kv: 256\nn_seq: 4\nmask: {kind: causal}\nlayout: {mask: {pad: 64}}\n"
)


def outcome_of(text, patch=None):
    """Run a scenario's only case, with a patch or without, and measure what came out."""
    tree = resolve(DEFAULT_SOURCE)
    applied = () if patch is None else (patches.find(patch, tree),)
    (case,) = expand(loads(text))
    inputs = make_inputs(case)
    outcome = Session(RunOptions(tree, patches=applied)).run(case, inputs, parse_target("sim:h200", load_devices()))
    return outcome, nmse(outcome.result.dst, reference_of(case, inputs)) if isinstance(outcome, Ran) else None


@pytest.mark.build
@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize(
    ("patch", "text"),
    [
        ("fault-missing-syncthreads", TWO_QUERIES),
        ("fault-mask-stride", PADDED_MASKS),
        ("fault-stream-k-seam", LONG_CACHE),
    ],
)
def test_fault_makes_the_output_wrong(pypi, patch, text):
    _, right = outcome_of(text)
    assert right < 1e-6
    outcome, wrong = outcome_of(text, patch)
    assert isinstance(outcome, Ran)
    assert not wrong < 1e-2  # NaN, where whole rows are masked by mistake, is wrong too


@pytest.mark.build
@pytest.mark.slow
@pytest.mark.network
def test_missing_bounds_check_is_an_access_out_of_bounds(pypi):
    _, right = outcome_of(SEVEN_QUERIES)
    assert right < 1e-6
    outcome, _ = outcome_of(SEVEN_QUERIES, "fault-tail-queries")
    assert isinstance(outcome, Fault)
    assert outcome.finding["kind"] == "out-of-bounds"
    assert "flash_attn_ext_f16" in outcome.finding["kernel"]
