"""The tool's first finding: a kernel that is as designed, but 2 % off.

One warp adds all of 16384 KV rows into its f16 accumulators, as it happens with many queries and heads.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.scenario import expand, loads
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.launch.constants import default_constants
from fattn_probe.llama.launch.geometry import geometry_of
from fattn_probe.llama.launch.record import parse_launch
from fattn_probe.llama.source import DEFAULT_SOURCE
from fattn_probe.machine.run.capture import Capture
from fattn_probe.verdict.judge.cases import judge_cases
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.judge.expectation import expected_of
from fattn_probe.verdict.measure.verdict import Status, judge, upstream_says
from fattn_probe.verdict.truth.reference.adapter import reference_of
from tests.stand_in import StandIn
from tests.verdict.truth.models import model_of

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
    inputs, geometry = make_inputs(case), geometry_of(case.op, [LAUNCH], 90)
    dst, reference = model_of(case, inputs, [LAUNCH], 90), reference_of(case.op, inputs)
    expected = expected_of(case, inputs, geometry, 90, "always", constants=default_constants())
    verdict = judge(dst, reference, case.tolerance, expected=expected)
    assert verdict.status is Status.PASS
    assert verdict.design.passes
    assert verdict.accuracy.passes == (percent is None)
    if percent is not None:
        assert verdict.metrics.bias * 100 == pytest.approx(percent, abs=0.5)
        assert "increments below half an ulp of the f16 accumulator are lost" in verdict.accuracy.reason
        assert "NMSE" in verdict.accuracy.reason
        assert upstream_says(dst, reference).passes == (verdict.metrics.nmse < 5e-4)


@dataclass
class H200(StandIn):
    """A session whose runs return the rounding model's output of an H200, or another output."""

    spoil: Any = None
    persistent_runner = staticmethod(nullcontext)

    def build_for(self, target):
        return SimpleNamespace(manifest=SimpleNamespace(build_number="11549", source=DEFAULT_SOURCE, patches=()))

    def capture(self, case, inputs, target, part=None):
        dst = model_of(case, dict(inputs), [TILE], 90)
        if self.spoil is not None:
            self.spoil(dst)
        return Capture(case.name, case.digest, case.op, inputs, dst, (TILE,), "gpu", (), "CUDA0", "NVIDIA H200", {})

    class options:
        tree = None
        build = None
        sanitize = ()


TILE = parse_launch(
    '{"order":0,"kernel":"void flash_attn_ext_f16<128, 128, 16, 4, false, false, false>(char)",'
    '"grid":[1,1,1],"block":[32,4,1],"shared":0}'
)
GROUP = SCENARIO.replace("n_head: 1\nn_q: 16", "n_head: 4\nn_head_kv: 1\nn_q: {n_q}")
TARGET = parse_target("sim:h200", load_devices())


@pytest.mark.parametrize("sample", [pytest.param("all", marks=pytest.mark.night), 16])  # 16, as for any large case
@pytest.mark.parametrize(
    ("n_kv", "n_q", "percent", "status"),
    [
        pytest.param(65536, 6, -13, Status.PASS, marks=pytest.mark.slow),
        # The predicted error is half of the answer: an output of zeros is as far from it.
        pytest.param(131072, 6, -51, Status.UNJUDGED, marks=pytest.mark.night),
    ],
)
def test_a_kernel_with_stagnant_accumulators_is_as_designed_but_inaccurate(n_kv, n_q, percent, status, sample):
    (case,) = expand(loads(GROUP.format(n_kv=n_kv, n_q=n_q), "biased.yaml"))
    options = Checks(model="never", sample=sample)
    steps: list[str] = []
    (row,) = judge_cases(H200(), [(case, [TARGET])], options, steps.append)
    assert [step.partition(": ")[2].partition(" of ")[0] for step in steps] == [
        "running",
        "computing the exact reference",
        "computing the error model and the rounding model",
    ]
    assert row.status is status
    assert row.verdict.design.passes and row.verdict.design.by == "prediction"
    assert row.verdict.metrics.bias * 100 == pytest.approx(percent, abs=6)
    assert row.verdict.design.predicted_mean_error * 100 == pytest.approx(percent, abs=6)
    assert not row.verdict.accuracy.passes
    assert "increments below half an ulp of the f16 accumulator are lost" in row.verdict.accuracy.reason
    (row,) = judge_cases(H200(lambda dst: dst.__setitem__((0, 1, 2), 0)), [(case, [TARGET])], options)
    assert row.status is Status.FAIL
    assert np.isfinite(row.verdict.metrics.nmse)
