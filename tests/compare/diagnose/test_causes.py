"""A planted fault is identified by the direction of the error; the rounding model stands in for the kernel."""

from dataclasses import replace

import numpy as np
import pytest

from fattn_probe.compare.diagnose.attention_row import AttentionRow, Head
from fattn_probe.compare.diagnose.candidates import Suspect
from fattn_probe.compare.diagnose.causes import candidates_of
from fattn_probe.compare.diagnose.diagnosis import Evidence, diagnose
from fattn_probe.compare.judge.expected import Expected
from fattn_probe.compare.judge.verdict import Status, judge
from fattn_probe.launch.geometry import Part, geometry_of
from fattn_probe.launch.record import parse_launch
from fattn_probe.scenario import expand, loads
from fattn_probe.scenario.inputs import make_inputs
from fattn_probe.truth.reference.adapter import reference_of
from fattn_probe.truth.rounding_model import model_of
from tests.planted import FAULTS, case_of, planted

LAUNCH = parse_launch(
    '{"order":0,"kernel":"void flash_attn_ext_f16<128, 128, 16, 2, false, false, false>(char)",'
    '"grid":[16,1,1],"block":[32,4,1],"shared":0}'
)


@pytest.fixture(scope="module")
def run():
    case = case_of(512)
    inputs = make_inputs(case)
    dst = model_of(case, inputs, [LAUNCH], 90)
    return case, inputs, dst, reference_of(case.op, inputs), geometry_of(case.op, [LAUNCH], 90)


def diagnosis_of(run, dst):
    case, inputs, model, reference, geometry = run
    verdict = judge(dst, reference, case.tolerance, expected=Expected(model=model))
    assert verdict.status is Status.FAIL
    return diagnose(Evidence(case, inputs, dst, verdict.deviation, geometry))


def test_the_model_itself_passes(run):
    case, _, dst, reference, _ = run
    assert judge(dst, reference, case.tolerance, expected=Expected(model=dst)).status is Status.PASS


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_fault_is_named(run, fault):
    case, inputs, dst, _, geometry = run
    found = diagnosis_of(run, planted(fault, case, inputs, dst, geometry))
    assert FAULTS[fault] in [said.cause.words for said in found.causes]
    assert found.causes[0].cause.explained > 0.99


def test_place_tile_block_and_step_of_the_worst(run):
    case, inputs, dst, _, geometry = run
    where = np.zeros(dst.shape[:3], bool)
    where[0, :, 3] = True
    left_out = next(fault for fault in FAULTS if fault.__name__ == "step_left_out")
    found = diagnosis_of(run, planted(left_out, case, inputs, dst, geometry, where=where))
    worst = found.worst[0]
    assert worst.at.head == 3
    assert worst.tile == (0, 1, 0, 0)
    assert worst.cause.step == 2
    (block,) = worst.blocks
    part = next(part for part in geometry.parts_of(worst.tile) if part.block == block)
    assert 2 in range(part.start, part.stop)
    assert found.patterns[0].words.startswith("head 3")


def test_another_rows_answer(run):
    dst = run[2].copy()
    dst[0, :, 1] = run[2][0, :, 2]
    found = diagnosis_of(run, dst)
    (said,) = found.causes
    assert str(said.cause) == "another row's answer stands there (that of head 2)"
    assert (said.rows, said.share) == (found.rows_tried, 1.0)


def test_noise_is_not_reported(run):
    noise = np.random.default_rng(0).standard_normal(run[2].shape)
    found = diagnosis_of(run, (run[2] + 0.01 * noise).astype(np.float32))
    assert found.causes == ()
    assert found.patterns == ()


def test_not_finite_has_a_place_but_no_cause(run):
    dst = run[2].copy()
    dst[0, 8:, 2, 5] = np.nan
    found = diagnosis_of(run, dst)
    assert (found.causes, found.worst[0].cause) == ((), None)
    assert {element.at.d for element in found.worst} == {5}
    assert "head 2" in found.patterns[0].words


IGNORING = """
version: 1
about: an op of which a part is ignored
hsk: 64
n_head: 2
n_q: 4
n_kv: 64
sinks: true
logit_softcap: 2.0
mask: {kind: causal}
data: {Q: {kind: normal, scale: 4}, sinks: {kind: normal, mean: 3}}
"""


@pytest.mark.parametrize("part", ["mask", "softcap", "sink"])
def test_a_part_of_the_op_that_is_ignored(part):
    (case,) = expand(loads(IGNORING, "ignoring.yaml"))
    row = AttentionRow.of(Head.of(case, make_inputs(case), 0, 1), 1, 1)
    without = {
        "mask": replace(row, mask=np.zeros(64)),
        "softcap": replace(row, softcap=0.0),
        "sink": replace(row, sink=None),
    }[part]
    error = without.output(without.logits) - row.output(row.logits)
    assert candidates_of(error, Suspect(row))[0].cause.words == f"the {part} is ignored"


def test_blocks_without_a_kv_step_have_no_share():
    """The vec kernel is launched with a block for each D rows, but a step of it has 128."""
    (case,) = expand(loads(IGNORING, "ignoring.yaml"))
    row = AttentionRow.of(Head.of(case, make_inputs(case), 0, 1), 3, 1)
    parts = tuple(Part(turn, turn, 2, 4, False) for turn in range(4))
    error = 0.01 * row.output(row.logits)
    assert candidates_of(error, Suspect(row, 32, parts))[0].cause.words == "the output is scaled"


def test_a_row_is_what_the_reference_says():
    (case,) = expand(loads(IGNORING, "ignoring.yaml"))
    inputs = make_inputs(case)
    row = AttentionRow.of(Head.of(case, inputs, 0, 1), 2, 1)
    np.testing.assert_allclose(row.output(row.logits), reference_of(case.op, inputs)[0, 2, 1], rtol=1e-12)
