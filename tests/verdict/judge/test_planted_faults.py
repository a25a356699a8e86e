"""A barrier that a kernel lacks: a simulated H200's output is wrong, and the checker names the race.

CI judges other planted faults in test_regress_cli.py, test_fuzz_cli.py and test_checked_faults.py.
"""

import pytest

from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.scenario import expand, loads
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.source import DEFAULT_SOURCE, patches, resolve
from fattn_probe.machine.run.outcome import Finding, Ran
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.verdict.measure.metrics import nmse
from fattn_probe.verdict.truth.reference.adapter import reference_of

pytestmark = [pytest.mark.build, pytest.mark.night, pytest.mark.network]
SCENARIO = "version: 1\nabout: x\nhsk: 64\nn_head: 16\nn_head_kv: 2\nn_q: 3\nn_kv: 256\nmask: {kind: causal}\n"


def outcome_of(flavour, *names):
    """Run the scenario with patches, and measure its output."""
    tree = resolve(DEFAULT_SOURCE)
    applied = tuple(patches.find(name, tree) for name in names)
    (case,) = expand(loads(SCENARIO))
    inputs, target = make_inputs(case), parse_target("sim:h200", load_devices())
    outcome = Session(RunOptions(tree, flavour=flavour, patches=applied)).run(case, inputs, target)
    return outcome, nmse(outcome.result.dst, reference_of(case.op, inputs)) if isinstance(outcome, Ran) else None


@pytest.mark.parametrize("flavour", ["release", "check"])
def test_a_missing_barrier(flavour):
    _, right = outcome_of(flavour)
    assert right < 1e-6
    outcome, wrong = outcome_of(flavour, "fault-missing-syncthreads")
    if flavour == "release":
        assert isinstance(outcome, Ran)
        assert not wrong < 3e-5  # the tolerance of the shipped scenarios; NaN, of rows masked by mistake, is wrong too
    else:
        assert isinstance(outcome, Finding)
        assert outcome.kind == "race"
        assert "flash_attn_ext_f16" in outcome.kernel
        assert "fattn-mma-f16.cuh:" in outcome.frames[0]
