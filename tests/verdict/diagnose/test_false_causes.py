"""Outputs that no cause describes get none, in ops that have all parts; a second run tells a race."""

import numpy as np
import pytest

from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.verdict.diagnose.diagnosis import Diagnosis, Evidence, diagnose, needs_another, with_another
from fattn_probe.verdict.diagnose.faults import Said
from fattn_probe.verdict.diagnose.row import Around, AttentionRow, Cause
from fattn_probe.verdict.measure.metrics import Deviation
from fattn_probe.verdict.measure.verdict import judge
from fattn_probe.verdict.truth.reference.adapter import reference_of
from tests.made import case_of, shape

PARTS = {
    "a mask": "mask: {kind: random, scale: 3}",
    "a softcap": "mask: {kind: causal}\nlogit_softcap: 4",
    "sinks": "mask: {kind: causal}\nsinks: true\ndata: {sinks: {kind: normal, mean: 3}}",
    "ALiBi": "mask: {kind: alibi}\nmax_bias: 8",
    "a q8_0 cache": "mask: {kind: random, scale: 3}\ntype_K: q8_0",
    "a constant V": "mask: {kind: causal}\nsinks: true\ndata: {V: {kind: constant, value: 4}}",
    "a constant V without sinks": "mask: {kind: causal}\ndata: {V: {kind: constant, value: 4}}",
}


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
    case = case_of(shape(64, 8, 4, 6, 128, PARTS[part]))
    inputs, chance = make_inputs(case), np.random.default_rng(0)
    reference = reference_of(case.op, inputs)
    dst = reference.astype(np.float32)
    for place in np.ndindex(dst.shape[:3]):
        dst[place] = fault(AttentionRow.of(Around(case, inputs, *place)), chance)
    found = diagnose(Evidence(case, inputs, dst, judge(dst, reference, case.tolerance).deviation, None))
    first = [said.cause.kind for said in found.causes]
    assert first == (["row-sum"] if first and "constant" in part else kinds)  # all wrong weights scale a constant V


ROWS = (1, 4, 2)


def found(*kinds):
    return Diagnosis(0, 0, (), (), tuple(Said(Cause(kind, kind, ""), 1, 1, 1.0) for kind in kinds), 1)


def evidence(wrong_rows):
    wrong = np.zeros((*ROWS, 8), bool)
    wrong[0, :wrong_rows] = True
    base = np.ones((*ROWS, 8))
    return Evidence(None, {}, (base + wrong).astype(np.float32), Deviation(wrong, base, np.ones(ROWS)), None)


@pytest.mark.parametrize(("kinds", "needs"), [((), True), (("columns", "scale"), True), (("scale", "columns"), False)])
def test_a_cause_that_predicts_the_output_needs_no_second_run(kinds, needs):
    assert needs_another(found(*kinds)) is needs


@pytest.mark.parametrize(("differ", "kinds"), [(0, ["columns"]), (1, ["columns"]), (2, ["nondeterministic"])])
def test_a_race_is_said_if_half_of_the_wrong_rows_differ(differ, kinds):
    """Right rows that differ, here the last, say nothing of the wrong ones."""
    one = evidence(3)
    again = one.dst.copy()
    again[0, :differ] += 1
    again[0, 3] += 1
    after = with_another(found("columns"), one, again)
    assert [said.cause.kind for said in after.causes] == kinds
    if kinds == ["nondeterministic"]:
        (said,) = after.causes
        assert (said.rows, said.of) == (4, 6)
        assert str(said.cause).endswith("(48 of 64 elements differ)")


def test_nan_with_the_same_bits_is_the_same():
    one = evidence(2)
    one.dst[0, :2] = np.nan
    assert with_another(found("invalid"), one, one.dst.copy()).causes[0].cause.kind == "invalid"
