"""No wrong output passes, whatever is not a number in a prediction or a model; a correct one is judged all the same."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.verdict.measure.expected import DECIDES, Design, Expected, hold, with_gaps
from fattn_probe.verdict.measure.limits import Limits, choose_limits
from fattn_probe.verdict.measure.sampled import judge_sample
from fattn_probe.verdict.measure.verdict import Status, Verdict, judge
from fattn_probe.verdict.truth.error_model.block import RowErrors
from fattn_probe.verdict.truth.error_model.prediction import Heads
from fattn_probe.verdict.truth.error_model.prediction import Prediction as RealPrediction
from fattn_probe.verdict.truth.reference.sampled import Sample
from tests.made import case_of, shape
from tests.verdict.made import Prediction, predicted

SHAPE = (2, 6, 3, 40)
RMSE = 1e-3
RNG = np.random.default_rng(5)
REFERENCE = RNG.standard_normal(SHAPE)
CORRECT = (REFERENCE + RMSE * RNG.standard_normal(SHAPE)).astype(np.float32)
ODD = (np.nan, np.inf, -np.inf)
WITHOUT_MASK = case_of(shape(64, 3, 3, 2, 64))


def one_row(values):
    """Only one row is wrong: it holds the answer of another."""
    dst = CORRECT.copy()
    dst[1, 2, 1] = values[0, 4, 2]
    return dst


WRONG = {
    "twice": 2 * CORRECT,
    "zeros": np.zeros_like(CORRECT),
    "plus 1": CORRECT + np.float32(1),
    "one row": one_row(CORRECT),
}


@st.composite
def expectations(draw):
    """A prediction and a model, of which any elements and any number may be NaN or infinite."""
    made, model = predicted(SHAPE), CORRECT.copy()
    sampled = draw(
        st.sampled_from([np.ones(SHAPE[:3], bool), np.arange(np.prod(SHAPE[:3])).reshape(SHAPE[:3]) % 3 == 0])
    )
    for array in (made.row_rmse, made.bound, model):
        kind = draw(st.sampled_from(["none", "one", "row", "half", "all"]))
        odd = np.float32(draw(st.sampled_from(ODD)))
        flat, at = array.reshape(-1), draw(st.integers(0, array.size - 1))
        places = {"none": slice(0), "one": slice(at, at + 1), "half": slice(0, None, 2), "all": slice(None)}
        if kind == "row":
            array[1, 2, 1] = odd
        else:
            flat[places[kind]] = odd
    prediction = Prediction(made.row_rmse, made.bound, sampled, draw(st.sampled_from((0.0, *ODD))))
    return Expected(
        (lambda: prediction) if draw(st.booleans()) else None,
        model if draw(st.booleans()) else None,
        bit_exact=draw(st.booleans()),
    )


@pytest.mark.parametrize(("unknown", "why"), [((), "why"), ((0, 0, 0), "why"), (..., "")])
def test_why_is_said_if_any_row_has_a_prediction(unknown, why):
    plain = real_prediction()
    logits = plain.rows.logits.copy()
    if unknown != ():
        logits[unknown] = np.nan
    assert replace(plain, rows=replace(plain.rows, logits=logits), explain=lambda causes: "why").why == why


@settings(max_examples=300, deadline=None)
@given(expectations(), st.sampled_from(sorted(WRONG)), st.booleans())
def test_no_wrong_output_passes_whatever_is_no_number(expected, wrong, has_tolerance):
    tolerance = Tolerance(nmse=5e-4) if has_tolerance else Tolerance()
    assert judge(WRONG[wrong], REFERENCE, tolerance, expected=expected).status is Status.FAIL


@settings(max_examples=200, deadline=None)
@given(expectations())
def test_a_correct_output_fails_only_where_the_model_overflows(expected):
    verdict = judge(CORRECT, REFERENCE, Tolerance(), expected=expected)
    overflows = expected.model is not None and np.isinf(expected.model[~np.isnan(expected.model).any(axis=3)]).any()
    assert verdict.status is (Status.FAIL if overflows else Status.PASS)


@settings(max_examples=300, deadline=None)
@given(expectations(), st.sampled_from([*sorted(WRONG), "correct"]), st.booleans())
def test_numbers_that_are_only_shown_change_nothing(expected, name, has_tolerance):
    dst, tolerance = WRONG.get(name, CORRECT), Tolerance(nmse=5e-4) if has_tolerance else Tolerance()
    shown, found = (judge(dst, REFERENCE, tolerance, expected=expected, predictions=also) for also in (True, False))
    assert replace(found, design=shown.design) == shown
    assert (found.deviation.wrong == shown.deviation.wrong).all()
    if found.design is not None:
        assert (found.design.passes, found.design.reason) == (shown.design.passes, shown.design.reason)


@settings(max_examples=100, deadline=None)
@given(expectations(), st.sampled_from(sorted(WRONG)))
def test_no_limits_hold_a_wrong_output(expected, wrong):
    assert not choose_limits(REFERENCE, Tolerance(), expected).hold(WRONG[wrong])


FIELDS = tuple(RowErrors.__dataclass_fields__)


def real_prediction():
    """A prediction of the error model's own type, of plain rows."""
    part = RMSE**2 / 4
    rows = dict.fromkeys(FIELDS, np.zeros(SHAPE[:3]))
    rows |= {name: np.full(SHAPE[:3], part) for name in ("logits", "weights", "sums", "values")}
    rows["worst"] = np.full(SHAPE[:3], 0.01)
    heads = (SHAPE[0], 1, SHAPE[2])
    moments = Heads(
        *(np.zeros(heads), np.zeros(heads), np.zeros(heads)),
        *(np.ones((*heads, SHAPE[3])), np.zeros((*heads, SHAPE[3])), np.ones((*heads, SHAPE[3]))),
    )
    none = np.zeros(SHAPE[:3], bool)
    return RealPrediction(RowErrors(**rows), moments, 2.0**-11, ~none, none, np.zeros(heads), lambda causes: "")


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([*FIELDS, *Heads.__dataclass_fields__]),
    st.sampled_from(ODD),
    st.booleans(),
    st.sampled_from(sorted(WRONG)),
)
def test_no_field_of_the_error_model_lets_a_wrong_output_pass(name, odd, everywhere, wrong):
    prediction = real_prediction()
    rows = name in FIELDS
    values = np.array(getattr(prediction.rows if rows else prediction.heads, name))
    values[... if everywhere else 0] = odd
    parts = (
        {"rows": replace(prediction.rows, **{name: values})}
        if rows
        else {"heads": replace(prediction.heads, **{name: values})}
    )
    with np.errstate(all="ignore"):
        found = replace(prediction, **parts)
        expected = Expected(lambda: found)
        assert judge(WRONG[wrong], REFERENCE, Tolerance(), expected=expected).status is Status.FAIL
        assert judge(CORRECT, REFERENCE, Tolerance(), expected=expected).status is Status.PASS
        if not everywhere:
            assert np.isfinite([found.rmse, found.mean_error]).all()


def test_a_row_without_a_prediction_is_named_and_the_others_are_still_held():
    prediction = predicted(SHAPE)
    prediction.row_rmse[0, 0, 0] = np.nan
    expected = with_gaps(Expected(lambda: prediction))
    assert (
        expected.missing
        == f"the error model has no number for 1 of 36 rows, whose K or V is too large: {DECIDES} for these"
    )
    verdict = judge(CORRECT, REFERENCE, Tolerance(), expected=expected)
    assert verdict.status is Status.PASS and "; 1 of 36 rows are within the tolerance" in verdict.reason
    dst = CORRECT.copy()
    dst[1, 1, 1] += np.float32(20 * RMSE)  # NMSE 1e-5, far within the tolerance
    assert "not as designed" in judge(dst, REFERENCE, Tolerance(), expected=expected).reason
    dst = CORRECT.copy()
    dst[0, 0, 0] *= 2
    verdict = judge(dst, REFERENCE, Tolerance(), expected=expected)
    assert verdict.reason.startswith(
        "1 of 36 rows have neither a model nor a prediction, and there NMSE 1.00e+00 is above"
    )
    assert np.argwhere(verdict.deviation.wrong.any(axis=3)).tolist() == [[0, 0, 0]]
    assert np.isfinite(verdict.deviation.unit).all()


def test_a_prediction_that_allows_anything_judges_nothing():
    wide = Expected(lambda: predicted(SHAPE, 0.9, bound=9.0))
    for dst in (0.4 * REFERENCE, np.zeros(SHAPE), 2 * REFERENCE):
        verdict = judge(dst.astype(np.float32), REFERENCE, Tolerance(), expected=wide)
        assert verdict.status is Status.UNJUDGED
        assert "36 of 36 rows have a predicted error as large as the answer" in verdict.reason
    assert judge(CORRECT, REFERENCE, Tolerance(), expected=wide).status is Status.PASS
    assert judge((5 * REFERENCE).astype(np.float32), REFERENCE, Tolerance(), expected=wide).status is Status.FAIL
    modelled = replace(wide, model=(0.4 * REFERENCE).astype(np.float32))
    assert judge(modelled.model, REFERENCE, Tolerance(), expected=modelled).status is Status.PASS


def test_records_that_contradict_themselves_are_refused():
    with pytest.raises(ValueError, match="a NaN figure cannot count as designed"):
        Design(True, "prediction", "", rmse_by_predicted=np.nan)
    with pytest.raises(ValueError, match="limit cannot be NaN"):
        Limits("prediction", REFERENCE, 1.0, rows=np.full(SHAPE[:3], np.nan))
    with pytest.raises(ValueError, match="a model of shape"):
        _ = Expected(lambda: predicted(SHAPE), CORRECT[:1]).prediction
    dst = CORRECT.copy()
    dst[0, 0, 0, 0] = np.nan
    metrics = judge(dst, REFERENCE, Tolerance()).metrics
    with pytest.raises(ValueError, match="cannot pass"):
        Verdict(Status.PASS, "", metrics)


@pytest.mark.parametrize(
    ("sunk", "uncertain"),
    [(0.0, 1.0), (0.3, np.sqrt(0.7)), (1.0, 0.0), (1.5, 0.0)],
    ids=["nothing", "a part", "everything", "rounding"],
)
def test_only_what_a_sink_makes_too_small_is_no_uncertainty(sunk, uncertain):
    """The mean square error is 1: 0.64 by chance and 0.36 by a loss."""
    found = real_prediction()
    ones, every = np.ones(SHAPE[:3]), dict.fromkeys(FIELDS, np.zeros(SHAPE[:3]))
    rows = RowErrors(
        **every | {"sums": 0.64 * ones, "loss_sink": 0.3 * ones, "sunk": sunk * ones, "floor": 0.75 * ones}
    )
    found = replace(found, rows=rows, heads=replace(found.heads, mean_square=np.full((SHAPE[0], 1, SHAPE[2]), 4.0)))
    assert found.row_uncertainty == pytest.approx(np.full(SHAPE[:3], uncertain))
    assert found.row_rmse == pytest.approx(np.full(SHAPE[:3], 1.25))  # with the floor
    too_wide = hold(CORRECT, REFERENCE, Expected(lambda: found)).too_wide
    assert (too_wide == (2 * uncertain >= np.sqrt(np.square(REFERENCE).mean(axis=3)))).all()


def test_the_hull_of_unsampled_rows_needs_a_number():
    rows = np.array([(0, 0, head) for head in range(3)])
    low, high = np.full((1, 3, 40), -1.0), np.full((1, 3, 40), 1.0)
    reference = RNG.uniform(-1, 1, (3, 40))
    dst = np.full((1, 2, 3, 40), 0.5, np.float32)
    dst[0, 0] = reference
    dst[0, 1, 2] = 3.0  # outside the hull, in a row that is not sampled
    sample = Sample(rows, reference, np.zeros(3), low, high)
    for odd in ODD:
        expected = Expected(partial(predicted, (1, 3, 1, 40), bound=odd))
        found = judge_sample(WITHOUT_MASK, dst, sample, expected, Tolerance())
        assert found.status is Status.FAIL and "outside V's convex hull" in found.reason
        assert hold(sample.of(dst)[None, :, None], reference[None, :, None], expected) is None or not np.isnan(odd)
