"""V is a view of a quantised K: an error of Q moves the weights along the very K that the output is made of.

Found by upstream's list on a real H200, where one of 3,993 correct outputs was 2.5 times as far off as predicted.
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
about: one query on a q8_0 cache
hsk: 64
n_head: 4
n_head_kv: 4
n_q: 1
n_kv: 512
type_K: q8_0
type_V: q8_0
seed: {seed}
mask: {{kind: causal}}
layout: {{V: {V}}}
"""
LAUNCHES = [
    parse_launch(text)
    for text in (
        '{"order":0,"kernel":"void flash_attn_ext_vec<64, 1, (ggml_type)8, (ggml_type)8, false>(char)",'
        '"grid":[1,4,4],"block":[32,4,1],"shared":0}',
        '{"order":1,"kernel":"void flash_attn_combine_results<64>(float)","grid":[1,4,1],"block":[64,1,1],"shared":32}',
    )
]


def test_an_error_of_q_moves_the_output_as_the_softmax_says():
    """Q times the scale is rounded to f16; V is the first 512 dimensions of K, of which the first 64 are large."""
    text = "version: 1\nabout: x\nhsk: 576\nhsv: 512\nn_head: 16\nn_head_kv: 1\nn_q: 1\nn_kv: 64\nscale: 0.3\n"
    (case,) = expand(loads(text + "layout: {V: {kind: view_of_K}}\n", "mla.yaml"))
    line = '"flash_attn_ext_f16<576, 512, 4, 16, false, true, false>","grid":[1,1,1],"block":[32,8,1],"shared":0}'
    values = operand_values(case.op, make_inputs(case))
    k = np.asarray(values["K"]) * np.where(np.arange(576) < 64, 2, 1).astype(np.float16)
    found = predicted(case.op, values | {"K": k, "V": k[..., :512]}, [parse_launch(f'{{"order":0,"kernel":{line}')], 90)
    q, rows = np.asarray(values["Q"])[0, :, 0], k[0, 0].astype(np.float64)
    logits = (q.astype(np.float64) * 0.3 @ rows.T, (q.astype(np.float16) * np.float16(0.3)) @ rows.T)
    weights = [np.exp(x - x.max(axis=1, keepdims=True)) for x in logits]
    exact, moved = (p / p.sum(axis=1, keepdims=True) @ rows[:, :512] for p in weights)
    np.testing.assert_allclose(found.rows.logits[0, 0], np.square(moved - exact).mean(axis=1), rtol=0.03)


@pytest.mark.parametrize("V", ["{kind: view_of_K}", "{kind: view}"])
def test_the_rmse_is_as_predicted_whether_or_not_v_is_k(V):
    square, expected = 0.0, 0.0
    for seed in range(8):
        (case,) = expand(loads(SCENARIO.format(seed=seed, V=V), "view.yaml"))
        inputs = make_inputs(case)
        values = operand_values(case.op, inputs)
        error = model_of(case, inputs, LAUNCHES, 90) - reference_of(case.op, inputs)
        prediction = predicted(case.op, values, LAUNCHES, 90)
        assert (np.abs(error) <= prediction.bound).all()
        square += float(np.square(error).mean())
        expected += float(prediction.rmse) ** 2
    assert 0.85 < np.sqrt(square / expected) < 1.15
