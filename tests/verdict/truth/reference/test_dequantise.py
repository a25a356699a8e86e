"""Every type's values against ggml's own, to the last bit: attention over one KV row gives back that row of V."""

import numpy as np
import pytest

from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.op.op import TYPE_NAMES
from fattn_probe.cases.scenario import expand, loads
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.machine.run.capture import Capture
from fattn_probe.verdict.truth.reference.adapter import reference_of

pytestmark = [pytest.mark.build, pytest.mark.slow, pytest.mark.network]  # ggml's CPU backend is compiled
OP = "version: 1\nabout: x\nhsk: 64\nn_q: 1\nn_kv: 1\nn_head: 64\nn_seq: 8\ntype_K: f16\n"


@pytest.mark.parametrize("type_", TYPE_NAMES)
@pytest.mark.parametrize("data", ["{kind: normal, scale: 3}", "{kind: fa3_outliers}", "{kind: uniform, scale: 1.0e-6}"])
def test_v_is_recovered(session, type_, data):
    (case,) = expand(loads(f"{OP}type_V: {type_}\ndata: {{V: {data}}}\n"))
    inputs = make_inputs(case)
    capture = session.capture(case, inputs, parse_target("cpu", load_devices()))
    assert isinstance(capture, Capture), capture
    np.testing.assert_array_equal(capture.dst, reference_of(case.op, inputs).astype(np.float32))
