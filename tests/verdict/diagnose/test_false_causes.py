"""Outputs that no cause describes get none, in ops that have all parts that a cause may speak of."""

import numpy as np
import pytest

from fattn_probe.cases.scenario import expand, loads
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.verdict.diagnose.diagnosis import Evidence, diagnose
from fattn_probe.verdict.diagnose.row import Around, AttentionRow
from fattn_probe.verdict.measure.verdict import judge
from fattn_probe.verdict.truth.reference.adapter import reference_of

PARTS = {
    "a mask": "mask: {kind: random, scale: 3}",
    "a softcap": "mask: {kind: causal}\nlogit_softcap: 4",
    "sinks": "mask: {kind: causal}\nsinks: true\ndata: {sinks: {kind: normal, mean: 3}}",
    "ALiBi": "mask: {kind: alibi}\nmax_bias: 8",
    "a q8_0 cache": "mask: {kind: random, scale: 3}\ntype_K: q8_0",
    "a constant V": "mask: {kind: causal}\nsinks: true\ndata: {V: {kind: constant, value: 4}}",
    "a constant V without sinks": "mask: {kind: causal}\ndata: {V: {kind: constant, value: 4}}",
}
OP = "version: 1\nabout: an op\nhsk: 64\nn_head: 8\nn_head_kv: 4\nn_q: 6\nn_kv: 128\n"


def weights_of_chance(row, chance):
    """Every KV row has a wrong weight."""
    return row.output(row.logits + chance.standard_normal(len(row.V)))


def logits_of_chance(row, chance):
    """Each product of Q and K is off by something of its own."""
    return row.answer(raw=row.raw + chance.standard_normal(len(row.V)))


def factors_of_chance(row, chance):
    """Each row is scaled by a factor of its own."""
    return row.output(row.logits) * chance.uniform(0.3, 0.9)


def half(row, chance):
    """All rows are scaled by the same factor."""
    return row.out / 2


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    ("fault", "kinds"),
    [(weights_of_chance, []), (logits_of_chance, []), (factors_of_chance, ["row-sum"]), (half, ["output-scale"])],
)
def test_no_part_of_the_op_is_blamed(part, fault, kinds):
    (case,) = expand(loads(OP + PARTS[part], "op.yaml"))
    inputs, chance = make_inputs(case), np.random.default_rng(0)
    reference = reference_of(case.op, inputs)
    dst = reference.astype(np.float32)
    for place in np.ndindex(dst.shape[:3]):
        dst[place] = fault(AttentionRow.of(Around(case, inputs, *place)), chance)
    found = diagnose(Evidence(case, inputs, dst, judge(dst, reference, case.tolerance).deviation, None))
    first = [said.cause.kind for said in found.causes]
    assert first == (["row-sum"] if first and "constant" in part else kinds)  # all wrong weights scale a constant V
