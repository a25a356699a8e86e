"""`compare --sample`: a sample of rows on the simulator, faults in rows that are sampled and in others."""

import numpy as np
import pytest

from fattn_probe.machine.run import capture as run_inputs
from fattn_probe.verdict.judge.cases import judge_cases
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.measure.verdict import Status
from fattn_probe.verdict.present.tables import rows_as_json
from tests.made import CAUSAL, CPU, H200, case_of, shape
from tests.verdict.made import Spoilt

CASE = shape(64, 8, 2, 300, 2048, CAUSAL)
ROWS = 200


@pytest.fixture(scope="module")
def session(session):
    return Spoilt(session)


def judged(session, spoil=None, text=CASE, target=H200, **options):
    case = case_of(text)
    session.spoil = spoil
    (row,) = judge_cases(session, [(case, [target])], Checks(**{"sample": ROWS} | options))
    return row


pytestmark = [pytest.mark.build, pytest.mark.network]


def test_a_correct_kernel_passes_with_the_model_on_its_rows(session):
    row = judged(session)
    assert row.status is Status.PASS
    assert (row.sampled.rows, row.sampled.of) == (ROWS, 2400)
    assert row.verdict.design.equal_bits == 1.0
    assert row.verdict.metrics.elements == row.sampled.rows * 64
    (document,) = rows_as_json([row])["rows"]
    whole = {"blocks": None, "of_blocks": None, "complete": None}
    assert document["sampled"] == {"rows": row.sampled.rows, "of": 2400} | whole


def test_prediction_and_model_of_a_sample_are_those_of_the_whole(session):
    sampled, whole = judged(session), judged(session, sample="all", model="always")
    assert whole.sampled is None
    assert whole.verdict.design.equal_bits == 1.0
    assert sampled.verdict.design.predicted_rmse == pytest.approx(whole.verdict.design.predicted_rmse, rel=0.5)
    assert sampled.verdict.design.error_by_bound <= whole.verdict.design.error_by_bound * 1.2


@pytest.mark.parametrize("model", ["always", "never"])
def test_a_fault_in_sampled_rows_is_placed_and_named(session, model):
    def spoil(dst):
        dst[:, :, 3] *= np.float32(1.05)

    row = judged(session, spoil, model=model)
    assert row.status is Status.FAIL
    assert "all of head 3" in [str(pattern) for pattern in row.diagnosis.patterns]
    worst = row.diagnosis.worst[0]
    assert (worst.at.head, worst.tile[1], worst.at.query // 16) == (3, 0, worst.tile[3])
    assert worst.blocks
    assert row.verdict.metrics.worst.head == 3
    assert row.diagnosis.causes[0].cause.words == "the output is scaled"


def test_stream_k_seams_are_sampled(session):
    seams = judged(session, text=CASE.replace("n_q: 300", "n_q: 33"), sample=1)
    whole = judged(session, text=CASE.replace("n_q: 300", "n_q: 33"), sample=100000)
    assert seams.status is whole.status is Status.PASS
    assert seams.sampled.rows < whole.sampled.rows <= seams.sampled.of


@pytest.mark.parametrize("value", [np.nan, np.inf, 1.5])
def test_a_fault_in_one_row_that_is_not_sampled_is_seen_by_the_hull(session, value):
    row = judged(session)
    assert row.status is Status.PASS

    def spoil(dst):
        dst[0, 101, 5, 7] = value

    row = judged(session, spoil, sample=1)
    assert row.status is Status.FAIL
    assert "1 rows (sequence, query, head: (0, 101, 5)) are not finite, or outside V's convex hull" in row.reason


def test_errors_inside_the_hull_of_unsampled_rows_are_missed_and_zeros_are_right_in_masked_rows(session):
    def spoil(dst):
        dst[0, 101, 5] = dst[0, 102, 5]

    assert judged(session, spoil, sample=1).status is Status.PASS
    assert judged(session, spoil, sample="all").status is Status.FAIL
    masked = CASE.replace("{kind: causal}", "{kind: masked_rows, every: 7}")
    masked += "sinks: true\ndata: {V: {kind: uniform, mean: 1, scale: 0.1}}\n"
    assert judged(session, text=masked, sample=40).status is Status.PASS


@pytest.mark.slow  # ggml's CPU backend is compiled
def test_the_cpu_backend_is_held_to_the_tolerance(session):
    row = judged(session, target=CPU)
    assert row.status is Status.PASS
    assert "CPU backend has no error model" in row.missing
    assert row.sampled.rows == ROWS


def test_a_large_case_is_sampled_by_itself_and_its_inputs_stay_in_a_file(session, monkeypatch):
    monkeypatch.setattr("fattn_probe.verdict.judge.checks.WHOLE_FLOP", 1e6)
    monkeypatch.setattr(run_inputs, "LARGE", 1 << 16)
    fresh = Spoilt(session.session)
    row = judged(fresh, sample="auto")
    assert row.status is Status.PASS
    assert row.sampled is not None
    assert row.verdict.design.equal_bits == 1.0
    (found,) = fresh.known.values()
    assert isinstance(found.inputs, run_inputs.FiledInputs)
    assert not found.inputs.file.exists()
