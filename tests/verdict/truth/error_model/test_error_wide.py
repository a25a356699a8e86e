"""Wide logits: one row has a single weight, the next one two that the errors of the logits tip.

Found by upstream's list on a real H200 (q_range=20): two rows of 4,800 beyond the bound that a neighbour had made.
"""

import numpy as np
import pytest

from fattn_probe.cases.scenario import expand, loads
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.launch.record import parse_launch
from fattn_probe.verdict.truth.reference.adapter import operand_values, reference_of
from tests.verdict.truth.models import model_of, predicted

SCENARIO = """
version: 1
about: Q is uniform in +-20
hsk: 64
n_head: 8
n_head_kv: 2
n_q: 75
n_kv: 1024
seed: {seed}
mask: {{kind: causal}}
data: {{Q: {{kind: uniform, scale: 20}}}}
"""
LAUNCH = parse_launch(
    '{"order":0,"kernel":"void flash_attn_ext_f16<64, 64, 16, 4, false, false, false>(char)",'
    '"grid":[10,1,1],"block":[32,4,1],"shared":0}'
)


@pytest.mark.parametrize("seed", range(4))
def test_unsampled_rows_are_within_their_bound_and_sampled_rows_too(seed):
    (case,) = expand(loads(SCENARIO.format(seed=seed), "wide.yaml"))
    inputs = make_inputs(case)
    values = operand_values(case.op, inputs)
    error = np.abs(model_of(case, inputs, [LAUNCH], 90) - reference_of(case.op, inputs))
    few, all_ = (predicted(case.op, values, [LAUNCH], 90, most=most) for most in (1, 10**9))
    assert few.sampled.all(axis=(0, 2)).sum() == 2
    assert (error <= all_.bound).all()
    assert (error <= few.bound).all()
    assert few.bound.max() < 1.5  # V is within +-1
