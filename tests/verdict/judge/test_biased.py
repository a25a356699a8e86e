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
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.launch.constants import default_constants
from fattn_probe.llama.launch.geometry import geometry_of
from fattn_probe.llama.source import DEFAULT_SOURCE
from fattn_probe.machine.run.capture import Capture
from fattn_probe.verdict.judge.cases import judge_cases
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.judge.expectation import expected_of
from fattn_probe.verdict.measure.verdict import Status, judge, upstream_says
from fattn_probe.verdict.truth.reference.adapter import reference_of
from tests.made import CAUSAL, case_of, launch_of, shape
from tests.stand_in import StandIn
from tests.verdict.truth.models import model_of

V1 = "data: {V: {kind: uniform, mean: 1, scale: 0.1}}"
LAUNCH = launch_of("flash_attn_ext_f16<128, 128, 64, 1, false, false, false>")


@pytest.mark.parametrize(("n_kv", "percent"), [(1024, None), (16384, -2.2)])
def test_as_designed_and_yet_inaccurate(n_kv, percent):
    case = case_of(shape(128, 1, 1, 16, n_kv, CAUSAL, V1))
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


TILE = launch_of("flash_attn_ext_f16<128, 128, 16, 4, false, false, false>")
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
    case = case_of(shape(128, 4, 1, n_q, n_kv, CAUSAL, V1))
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
