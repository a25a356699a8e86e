"""A second run tells a race from what only looks like one."""

import numpy as np
import pytest

from fattn_probe.verdict.diagnose.diagnosis import Diagnosis, Evidence, needs_another, with_another
from fattn_probe.verdict.diagnose.faults import Said
from fattn_probe.verdict.diagnose.row import Cause
from fattn_probe.verdict.measure.metrics import Deviation

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
