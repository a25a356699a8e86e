"""The first finding of this tool: a kernel that is as designed, and 2 % off.

One warp adds all of 16384 KV rows into its f16 accumulators, as it happens with many queries and heads.
"""

import pytest

from fattn_probe.compare.run import expected_of
from fattn_probe.compare.verdict import Status, judge, upstream_says
from fattn_probe.model import model_of
from fattn_probe.reference.adapter import reference_of
from fattn_probe.run.capture import Capture
from fattn_probe.run.launches import parse_launch
from fattn_probe.scenario import expand, loads, make_inputs

SCENARIO = """
version: 1
about: V is 1 +- 0.1
hsk: 128
n_head: 1
n_q: 16
n_kv: {n_kv}
mask: {{kind: causal}}
data: {{V: {{kind: uniform, mean: 1, scale: 0.1}}}}
"""
LAUNCH = parse_launch(
    '{"order":0,"kernel":"void flash_attn_ext_f16<128, 128, 64, 1, false, false, false>(char)",'
    '"grid":[1,1,1],"block":[32,4,1],"shared":0}'
)


@pytest.mark.parametrize(("n_kv", "percent"), [(1024, None), (16384, -2.2)])
def test_as_designed_and_yet_inaccurate(n_kv, percent):
    (case,) = expand(loads(SCENARIO.format(n_kv=n_kv), "biased.yaml"))
    inputs = make_inputs(case)
    dst, reference = model_of(case, inputs, [LAUNCH], 90), reference_of(case, inputs)
    capture = Capture(case, inputs, dst, (LAUNCH,), "gpu", (), "CUDA0", "NVIDIA H200", {})
    verdict = judge(dst, reference, case.tolerance, expected=expected_of(case, inputs, capture, 90, "always"))
    assert verdict.status is Status.PASS
    assert verdict.design.passes
    assert verdict.accuracy.passes == (percent is None)
    if percent is not None:
        assert verdict.metrics.bias * 100 == pytest.approx(percent, abs=0.5)
        assert "increments below half an ulp of the f16 accumulator are lost" in verdict.accuracy.reason
        assert "NMSE" in verdict.accuracy.reason
        assert upstream_says(dst, reference).passes == (verdict.metrics.nmse < 5e-4)
