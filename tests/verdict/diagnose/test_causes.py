"""A planted fault is identified by the direction of the error; the rounding model stands in for the kernel.

Outputs that no cause describes get none, in ops that have all parts; a second run tells a race. What follows from a
wrong row by linear algebra, and what does not, is at the end.
"""

from dataclasses import replace

import numpy as np
import pytest

from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cases.scenario.layout import Layout, View
from fattn_probe.llama.launch.geometry import geometry_of
from fattn_probe.llama.launch.tiles import TileWork
from fattn_probe.verdict.diagnose.algebra import is_outside
from fattn_probe.verdict.diagnose.diagnosis import Diagnosis, Evidence, diagnose, lean, needs_another, with_another
from fattn_probe.verdict.diagnose.faults import Said, candidates_of, causes_by_algebra
from fattn_probe.verdict.diagnose.row import Around, AttentionRow, Cause, Moves, WrongRow, fitting
from fattn_probe.verdict.measure.expected import Expected
from fattn_probe.verdict.measure.metrics import POISON, Deviation
from fattn_probe.verdict.measure.verdict import Status, judge
from fattn_probe.verdict.truth.reference.adapter import reference_of
from tests.made import CAUSAL, at_night, case_of, launch_of, shape
from tests.planted import FAULTS, planted
from tests.planted import case_of as planted_case
from tests.verdict.truth.models import model_of

LAUNCH = launch_of("flash_attn_ext_f16<128, 128, 16, 2, false, false, false>", (16, 1, 1))


@pytest.fixture(scope="module")
def run():
    case = planted_case(512)
    inputs = make_inputs(case)
    dst = model_of(case, inputs, [LAUNCH], 90)
    return case, inputs, dst, reference_of(case.op, inputs), geometry_of(case.op, [LAUNCH], 90)


def diagnosis_of(run, dst):
    case, inputs, model, reference, geometry = run
    verdict = judge(dst, reference, case.tolerance, expected=Expected(model=model))
    assert verdict.status is Status.FAIL
    return diagnose(Evidence(case, inputs, dst, verdict.deviation, geometry))


def test_the_model_passes_noise_is_not_reported_and_an_output_of_zeros_has_no_other_cause(run):
    case, _, dst, reference, _ = run
    assert judge(dst, reference, case.tolerance, expected=Expected(model=dst)).status is Status.PASS
    noise = np.random.default_rng(0).standard_normal(run[2].shape)
    found = diagnosis_of(run, (run[2] + 0.01 * noise).astype(np.float32))
    assert found.causes == ()
    assert found.patterns == ()
    found = diagnosis_of(run, np.zeros_like(run[2]))
    assert [said.cause.kind for said in found.causes] == ["zero"]


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
    assert (len(found.worst), found.rows_tried) == (5, 8)
    worst = found.worst[0]
    assert worst.at.head == 3
    assert worst.tile == (0, 1, 0, 0)
    assert worst.cause.step == 2
    (block,) = worst.blocks
    assert 2 in geometry.parts_of(worst.tile)[block].steps
    assert found.patterns[0].words.startswith("head 3")


def test_another_rows_answer(run):
    dst = run[2].copy()
    dst[0, :, 1] = run[2][0, :, 2]
    found = diagnosis_of(run, dst)
    (said,) = found.causes
    assert str(said.cause) == "the output is a different row's answer (that of head 2)"
    assert (said.rows, said.share) == (found.rows_tried, 1.0)


@pytest.mark.parametrize(("size", "kinds"), [(1.0, ["rounding"]), (8.0, [])])
def test_a_rounding_is_as_large_as_the_kernels_own(run, size, kinds):
    """Eight times the kernel's own error is below 2^-8 of the answer, but no rounding of this kernel."""
    _, _, model, reference, _ = run
    own = np.sqrt(np.mean((model - reference) ** 2, axis=3, keepdims=True))
    noise = size * own * np.random.default_rng(0).standard_normal(model.shape)
    found = diagnosis_of(run, (model + noise).astype(np.float32))
    assert [said.cause.kind for said in found.causes] == kinds


def test_a_factor_with_small_errors_shows_in_all_rows_together(run):
    case, inputs, dst, reference, geometry = run
    own = np.sqrt(np.mean((dst - reference) ** 2, axis=3, keepdims=True))
    noise = own * np.random.default_rng(0).standard_normal(dst.shape)
    wrong = planted(lambda row, *_: row.output(1.001 * row.raw + row.mask), case, inputs, dst, geometry) + noise
    assert [str(said.cause) for said in diagnosis_of(run, wrong.astype(np.float32)).causes] == [
        "the logits are scaled (by about 1.001)"
    ]


def wrong_row(case, place, answer=lambda row: row.out, inputs=None, **known):
    """A row (sequence, query, head) with another answer, and its exact one."""
    around = Around(case, inputs or make_inputs(case), *place)
    row = AttentionRow.of(around)
    out = answer(row)
    return WrongRow(row, around, out, row.out, out != row.out, **known)


def divided(seam, stop):
    """The work of two blocks that share a tile of `stop` KV steps; the second writes dst."""
    first, last = TileWork(0, 0, 0, 0, 0, seam, is_fixup=True), TileWork(0, 0, 0, 0, seam, stop, needs_fixup=True)
    return {0: first, 1: last}


@pytest.mark.parametrize(("heads", "leans"), [(8, True), (5, False)])
def test_few_rows_tell_a_lean_by_their_spread(heads, leans):
    """A softcap of four times the size changes these logits as little as the kernel's rounding does."""
    case = case_of(shape(128, 8, 8, 1, 256, "logit_softcap: 10", "mask: {kind: random}"))
    chance = np.random.default_rng(0)
    wrong, noise = [], []
    for head in range(heads):
        capped = wrong_row(case, (0, 0, head), lambda row: row.answer(softcap=40.0))
        own = capped.off / len(capped.out) ** 0.5 * chance.standard_normal(len(capped.out))
        wrong.append(replace(capped, out=capped.out + own))
        noise.append(replace(capped, out=capped.base + own))
    assert (bool([*lean(wrong)]), [*lean(noise)]) == (leans, [])


def test_products_of_an_operand_of_zeros_are_named():
    """An H200 read zeros behind a K whose conversion missed half of it (faults/14822-k-view)."""
    wrong = wrong_row(case_of(shape(64, 8, 4, 6, 128)), (0, 0, 0), lambda row: row.answer(raw=-4e-5 * row.raw))
    assert str(candidates_of(wrong)[0].cause) == "the logits are scaled (by 0: as if Q or K were zero)"


def test_not_finite_has_a_place_but_no_cause(run):
    dst = run[2].copy()
    dst[0, 8:, 2, 5] = np.nan
    found = diagnosis_of(run, dst)
    assert (found.causes, found.worst[0].cause) == ((), None)
    assert {element.at.d for element in found.worst} == {5}
    assert "head 2" in found.patterns[0].words


FRESH_F32, FRESH_F16 = 0xFFFFFFFF, 0xFFFFE000
CPU_NAN, GPU_NAN = 0xFFC00000, 0x7FFFFFFF


BITS = {
    POISON: "unwritten",
    FRESH_F32: "unwritten-read",
    FRESH_F16: "unwritten-read",
    CPU_NAN: "invalid",
    GPU_NAN: None,
}
AMONG_OTHERS = (POISON, FRESH_F16, CPU_NAN)


@pytest.mark.parametrize(("bits", "others"), [*((it, 0.0) for it in BITS), *((it, 0.01) for it in AMONG_OTHERS)])
def test_the_bits_of_a_nan_tell_where_it_comes_from(run, bits, others):
    """In few rows too, if nothing explains the errors of the others."""
    cause, noise = BITS[bits], np.random.default_rng(0).standard_normal(run[2].shape)
    dst = (run[2] + others * noise).astype(np.float32)
    dst[0, 8:10, 2, 5] = np.array(bits, np.uint32).view(np.float32)
    found = diagnosis_of(run, dst)
    few = cause is None or (cause == "invalid" and others > 0)
    assert [said.cause.kind for said in found.causes] == ([] if few else [cause])
    assert all(said.rows == 2 for said in found.causes)


@pytest.mark.parametrize(("bits", "kinds"), [(0x7FC00000, ["operand-nan"]), (0x7FC00001, [])])
def test_a_nan_of_the_memory_around_the_operands(run, bits, kinds):
    """A GPU passes on the NaN that a scenario puts around its operands."""
    case, inputs, dst, reference, geometry = run
    layout = Layout(K=View(kind="view", offset=64, outside="nan"))
    around = replace(case, source=replace(case.recipe, layout=layout))
    wrong = np.where(np.arange(16)[:, None, None] >= 4, dst, np.array(bits, np.uint32).view(np.float32))
    assert [said.cause.kind for said in diagnosis_of((around, inputs, dst, reference, geometry), wrong).causes] == kinds
    assert diagnosis_of(run, wrong).causes == ()


def test_a_nan_of_memory_does_not_hide_the_cause_of_most_rows(run):
    case, inputs, dst, _, geometry = run
    left_out = next(fault for fault in FAULTS if fault.__name__ == "step_left_out")
    wrong = planted(left_out, case, inputs, dst, geometry)
    wrong[0, 0, 0, 0] = np.array(FRESH_F32, np.uint32).view(np.float32)
    causes = [said.cause.kind for said in diagnosis_of(run, wrong).causes]
    assert causes[0] == "kv-left-out"
    assert "unwritten-read" not in causes


def test_factors_that_differ_by_row_are_those_of_the_sums_of_weights(run):
    factors = np.random.default_rng(0).uniform(0.5, 1.5, run[2].shape[:3])[..., None]
    found = diagnosis_of(run, (run[2] * factors).astype(np.float32))
    assert [said.cause.kind for said in found.causes] == ["row-sum"]
    assert found.worst[0].cause.kind == "output-scale"
    found = diagnosis_of(run, (run[2] * np.float32(0.75)).astype(np.float32))
    assert [str(said.cause) for said in found.causes] == ["the output is scaled (by 0.75)"]


def test_the_cause_that_explains_most_rows_is_first_and_one_of_few_rows_is_not_said(run):
    case, inputs, dst, _, geometry = run
    where = np.zeros(dst.shape[:3], bool)
    where[0, :, :3] = True
    left_out = next(fault for fault in FAULTS if fault.__name__ == "step_left_out")
    wrong = planted(left_out, case, inputs, dst, geometry, where=where)
    wrong[0, :, 3] *= 1.5
    found = diagnosis_of(run, wrong)
    assert found.causes[0].cause.kind == "kv-left-out"
    assert all(said.share >= 0.5 for said in found.causes)
    assert "output-scale" not in [said.cause.kind for said in found.causes]


def test_kv_steps_that_are_missing_are_named(run):
    case, inputs, dst, _, geometry = run

    def some_left_out(row, geometry, place):
        logits, step = row.logits, geometry.rows
        for first in (1, 4):
            logits[first * step : (first + 1) * step] = -np.inf
        return row.output(logits)

    found = diagnosis_of(run, planted(some_left_out, case, inputs, dst, geometry))
    assert found.causes[0].cause.kind == "kv-left-out"
    assert found.causes[0].cause.detail == "KV steps 1, 4"
    assert found.causes[0].cause.explained > 0.99


def some_keys_weighted(row, geometry, place):
    """Every KV row has a wrong weight."""
    return row.output(row.logits + np.log(np.random.default_rng(1).uniform(0.5, 1.5, len(row.V))))


def step_not_rescaled(row, geometry, place):
    """The sum of the weighted V is not scaled down when the maximum grows."""
    logits, acc, total, top = row.logits, 0.0, 0.0, -np.inf
    for first in range(0, len(logits), geometry.rows):
        step = slice(first, first + geometry.rows)
        before, top = top, max(top, logits[step].max())
        weights = np.exp(logits[step] - top)
        total = total * np.exp(before - top) + weights.sum()
        acc = acc + weights @ row.V[step]
    return acc / total


def half_a_step_of_V_late(row, geometry, place):
    V, half = row.V.copy(), geometry.rows // 2
    V[:half] = np.roll(V[:half], 1, axis=0)
    return row.weights(row.logits) @ V


def logits_permuted(row, geometry, place):
    """Each KV row has the logit of another."""
    return row.output(np.random.default_rng(2).permutation(row.raw) + row.mask)


@pytest.mark.parametrize(("blocks", "kind"), [(16, "share"), (2, "kv-parts")])
def test_a_step_that_is_not_rescaled_has_the_wrong_weight(run, blocks, kind):
    """Of 16 blocks each has one step of a tile, of two each has a tile."""
    case, inputs, dst, _, _ = run
    geometry = geometry_of(case.op, [replace(LAUNCH, grid=(blocks, 1, 1))], 90)
    found = diagnosis_of((*run[:4], geometry), planted(step_not_rescaled, case, inputs, dst, geometry))
    assert [said.cause.kind for said in found.causes] == [kind]


def test_a_cause_of_half_the_rows_comes_after_the_combination_of_shares():
    """A wrong stride in the general fixup left zeros in only some of the tiles that several blocks share."""
    case = case_of(shape(128, 6, 3, 16, 512, "mask: {kind: causal}"))
    inputs, launches = make_inputs(case), [replace(LAUNCH, grid=(2, 1, 1))]
    dst, geometry = model_of(case, inputs, launches, 90), geometry_of(case.op, launches, 90)
    shared = np.array([len(parts) > 1 for parts in geometry.parts])[geometry.indices(dst.shape[:3])]
    assert 0 < shared.mean() < 1
    other = dst + np.random.default_rng(0).standard_normal(dst.shape)
    other[:, ::2] = 0
    wrong = np.where(shared[..., None], other, dst).astype(np.float32)
    found = diagnosis_of((case, inputs, dst, reference_of(case.op, inputs), geometry), wrong)
    assert [said.cause.kind for said in found.causes] == ["share", "zero"]


@pytest.mark.parametrize("fault", [half_a_step_of_V_late, *at_night(some_keys_weighted, logits_permuted)])
def test_a_fault_that_no_cause_describes_is_met_with_silence(run, fault):
    case, inputs, dst, _, geometry = run
    assert diagnosis_of(run, planted(fault, case, inputs, dst, geometry)).causes == ()


@pytest.mark.parametrize(
    ("kind", "spoiled"),
    [("masked-tile", "rows whose first KV step is hidden"), (None, "rows of head 2"), (None, "every row but one")],
)
def test_nan_has_a_cause_only_if_it_is_in_the_rows_that_the_cause_predicts(kind, spoiled):
    """The later half of the queries does not see the first KV step."""
    case = case_of(shape(128, 4, 2, 16, 72, "mask: {kind: sliding_window, window: 1}"))
    inputs = make_inputs(case)
    reference = reference_of(case.op, inputs)
    geometry = geometry_of(case.op, [replace(LAUNCH, grid=(2, 1, 1))], 90)  # a block for each tile, of two steps
    assert geometry.rows == 64
    rows = {
        "rows whose first KV step is hidden": np.s_[0, 8:],
        "rows of head 2": np.s_[0, :, 2],
        "every row but one": np.s_[0, 1:],
    }[spoiled]
    dst = reference.astype(np.float32)
    dst[rows] = np.nan
    found = diagnose(Evidence(case, inputs, dst, judge(dst, reference, case.tolerance).deviation, geometry))
    assert [said.cause.kind for said in found.causes] == ([] if kind is None else [kind])


LARGE = "data: {Q: {kind: normal, scale: 4}, sinks: {kind: normal, mean: 3}}"
IGNORED = case_of(shape(64, 2, 2, 4, 64, "sinks: true\nlogit_softcap: 2.0", CAUSAL, LARGE))
"""A case of which a part is ignored."""


@pytest.mark.parametrize("part", ["mask", "softcap", "sink"])
def test_a_part_of_the_op_that_is_ignored(part):
    value = {"mask": np.zeros(64), "softcap": 0.0, "sink": None}[part]
    wrong = wrong_row(IGNORED, (0, 1, 1), lambda row: row.answer(**{part: value}))
    assert candidates_of(wrong)[0].cause.words == f"the {part} is ignored"


@pytest.mark.parametrize(
    ("detail", "change"),
    [
        ("it is multiplied by the scale", lambda sink: sink / 8),  # 1/sqrt(64)
        ("the softcap is applied to it", lambda sink: 2.0 * np.tanh(sink / 2.0)),
    ],
)
def test_a_sink_that_is_treated_as_a_logit(detail, change):
    """A softcapped sink was "each row is scaled by a different factor"."""
    wrong = wrong_row(IGNORED, (0, 3, 1), lambda row: row.answer(sink=change(row.sink)))
    assert str(candidates_of(wrong)[0].cause) == f"the sink is treated as a logit ({detail})"


def test_heads_of_q_with_the_stride_of_queries():
    """The tile kernel took the heads of a block to be adjacent, and the output had no cause."""
    case = case_of(shape(64, 4, 2, 8, 64, CAUSAL))
    around = Around(case, make_inputs(case), 0, 3, 2)
    wrong = wrong_row(case, (0, 3, 2), lambda row: row.answer(raw=row.K @ around.q_of(0, 5, 0) * around.scale))
    assert str(candidates_of(wrong)[0].cause) == "Q is read from the wrong place (its heads with the stride nb[1])"


@pytest.mark.parametrize("factor", [0.25, 0.5, 3.0, 4.0])
def test_a_softcap_of_another_size(factor):
    wrong = wrong_row(IGNORED, (0, 3, 1), lambda row: row.answer(softcap=factor * row.softcap))
    first = candidates_of(wrong)[0].cause
    assert (first.kind, first.words) == ("softcap", "the softcap has a wrong value")
    assert first.factor == pytest.approx(factor, rel=1e-3)


SHARED = shape(64, 2, 2, 4, 64, "max_bias: 8", "mask: {kind: alibi}")


@pytest.mark.parametrize("writes", [True, False])
def test_a_slope_that_is_wrong_in_the_shares_of_some_blocks(writes):
    """Kernels have code of their own for the blocks that leave their share of a tile to another kernel."""
    case = case_of(SHARED)

    def answer(row):
        return row.output(np.where((np.arange(64) >= 32) == writes, row.raw + 3 * row.mask, row.logits))

    first = candidates_of(wrong_row(case, (0, 3, 1), answer, step=16, parts=divided(2, 4)))[0].cause
    whose = "the blocks that write dst" if writes else "blocks that another kernel adds"
    assert (first.kind, first.words) == ("alibi", f"the slope of ALiBi is wrong in the shares of {whose}")


@pytest.mark.parametrize("scanned", [False, True])
def test_blocks_that_take_turns_have_no_seams_and_a_scan_of_the_mask_may_leave_out_the_last_rows(scanned):
    case, parts = case_of(SHARED), {turn: TileWork(0, 0, 0, 0, turn, 4, 2) for turn in range(2)}

    def words(lost, **parts):
        late = wrong_row(case, (0, 3, 1), lambda row: row.output(np.where(lost, -np.inf, row.logits)), step=16, **parts)
        return {one.cause.words for one in candidates_of(replace(late, scanned=scanned))}

    second = (np.arange(64) >= 16) & (np.arange(64) < 32)  # this step begins the share of the second block
    assert not any("seam" in said for said in words(second, parts=parts))
    assert any("seam" in said for said in words(second, parts=divided(1, 4)))
    assert f"the last KV rows are left out{': KV_max may be too small' * scanned}" in words(np.arange(64) >= 31)


def test_blocks_end_as_if_at_the_last_kv_step_and_those_without_one_have_no_share():
    case = case_of(SHARED.replace("n_kv: 64", "n_kv: 60"))
    lost = np.isin(np.arange(60), range(28, 32))  # the last step has 12 of 16 rows
    one = wrong_row(
        case, (0, 3, 1), lambda row: row.output(np.where(lost, -np.inf, row.logits)), step=16, parts=divided(2, 4)
    )
    assert candidates_of(one)[0].cause.words.startswith("the end of the KV step before each seam")
    # The vec kernel is launched with a block for each D rows, but a step of it has 128.
    parts = {turn: TileWork(0, 0, 0, 0, turn, 2, 4) for turn in range(4)}
    wrong = wrong_row(IGNORED, (0, 3, 1), lambda row: 1.01 * row.out, step=32, parts=parts)
    assert candidates_of(wrong)[0].cause.words == "the output is scaled"


def test_a_row_reads_the_mask_of_its_head():
    view = IGNORED.op.tensors["mask"]
    by_head = replace(view, ne=(*view.ne[:2], 2, 1), nb=(*view.nb[:2], view.nb[1] * view.ne[1], view.nb[3] * 2))
    op = replace(IGNORED.op, tensors={**IGNORED.op.tensors, "mask": by_head})
    case, planes = replace(IGNORED, op=op), np.zeros((2, 4, 64), np.float16)
    planes[0, :, 5:], planes[1, :, :40] = -np.inf, -np.inf
    inputs = {**make_inputs(case), "mask": planes.view(np.uint8).reshape(-1)}
    reference = reference_of(op, inputs)
    for head in (0, 1):
        around = Around(case, inputs, 0, 2, head)
        row = AttentionRow.of(around)
        np.testing.assert_allclose(row.output(row.logits), reference[0, 2, head], rtol=1e-12)
        other = dict(around.masks())
        assert f"sequence 0, head {head}, row 2" not in other
        np.testing.assert_array_equal(other[f"sequence 0, head {1 - head}, row 2"], planes[1 - head, 2])
    np.testing.assert_array_equal(around.mask_entries(around.mask_start + 64, 8), planes[1, 3, :8])


VIEW = "{kind: view, rows: 90, offset: 3, pad: 32, outside: nan}"
EXTREME = {
    "logits beyond f16": "mask: {kind: causal}\ndata: {Q: {kind: normal, scale: 4e4}, K: {kind: normal, scale: 40}}",
    "a fully masked row": "mask: {kind: masked_rows, every: 1}",
    "a fully masked row with a sink": "mask: {kind: masked_rows, every: 1}\nsinks: true",
    "NaN around K and V": f"mask: {{kind: causal}}\nlayout: {{K: {VIEW}, V: {VIEW}}}",
    "infinities around K and V": f"mask: {{kind: causal}}\nlayout: {{K: {VIEW}, V: {VIEW}}}",
    "quantised K and V": "mask: {kind: causal}\ntype_K: q4_0\ntype_V: q8_0",
    "V at the end of f16": "mask: {kind: causal}\ndata: {V: {kind: constant, value: 65000}}",
    "a softcap": "mask: {kind: causal}\nlogit_softcap: 1e-3\ndata: {Q: {kind: normal, scale: 4e4}}",
    "ALiBi": "mask: {kind: alibi}\nmax_bias: 8\ndata: {Q: {kind: normal, scale: 4e4}}",
}


@pytest.mark.parametrize("what", EXTREME)
def test_extreme_rows_are_searched_without_a_warning(what):
    case = case_of(shape(64, 2, 2, 4, 72, "n_seq: 2", EXTREME[what]))
    inputs = make_inputs(case)
    for memory in (inputs[name].view(np.float16) for name in "KV" if what.startswith("infinities")):
        memory[np.isnan(memory)] = np.resize([np.inf, -np.inf], np.isnan(memory).sum())
    noise = np.random.default_rng(0).standard_normal(64)
    wrong = wrong_row(case, (1, 1, 1), inputs=inputs, step=32, parts=divided(2, 3))
    assert candidates_of(replace(wrong, base=np.zeros(64), out=noise)) == []


def test_an_error_at_the_end_of_float32_is_not_explained_by_an_overflow():
    """The square of a product of two large errors is beyond float64, and an infinite gain would explain everything."""
    moves = np.full((1, 64), 1e130)
    moves[0, 32:] = -1e130
    move = Moves(moves, lambda index, factor: Cause("kv-hidden", "x", ""), free=True)
    error = np.full(64, 3e38)
    error[:16] = -3e38
    assert fitting(error, [move]) == []


def test_a_hidden_row_is_hidden_whatever_its_logit():
    raw, mask = np.array([1.0, np.inf, np.nan]), np.array([0.0, -np.inf, -np.inf])
    row = AttentionRow(np.eye(3), np.eye(3), raw, mask, softcap=0.0, sink=None)
    assert row.logits.tolist() == [1.0, -np.inf, -np.inf]


PARTS = {
    "a mask": "mask: {kind: random, scale: 3}",
    "a softcap": "mask: {kind: causal}\nlogit_softcap: 4",
    "sinks": "mask: {kind: causal}\nsinks: true\ndata: {sinks: {kind: normal, mean: 3}}",
    "ALiBi": "mask: {kind: alibi}\nmax_bias: 8",
    "a q8_0 cache": "mask: {kind: random, scale: 3}\ntype_K: q8_0",
    "a constant V": "mask: {kind: causal}\nsinks: true\ndata: {V: {kind: constant, value: 4}}",
    "a constant V without sinks": "mask: {kind: causal}\ndata: {V: {kind: constant, value: 4}}",
}


def logits_of_chance(row, chance):
    """Each product of Q and K is off by something of its own, so every KV row has a wrong weight."""
    return row.answer(raw=row.raw + chance.standard_normal(len(row.V)))


def factors_of_chance(row, chance):
    """Each row is scaled by a factor of its own."""
    return row.output(row.logits) * chance.uniform(0.3, 0.9)


def half(row, chance):
    """All rows are scaled by the same factor."""
    return row.out / 2


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    ("fault", "kinds"), [(logits_of_chance, []), (factors_of_chance, ["row-sum"]), (half, ["output-scale"])]
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


UNIT = 1e-6


@pytest.fixture(scope="module")
def rows():
    return rows_of(256)


def rows_of(n_kv):
    case = case_of(shape(64, 1, 1, 8, n_kv))
    inputs = make_inputs(case)
    places = [Around(case, inputs, 0, query, 0) for query in range(8)]
    return [(AttentionRow.of(around), around) for around in places]


def causes(rows, wrong, step=64, **known):
    """What is said of rows with other answers, each by `wrong(row, around)`."""
    examined = []
    for row, around in rows:
        base = row.output(row.logits)
        out = wrong(row, around)
        noise = UNIT * np.random.default_rng(0).standard_normal(out.shape) / 2
        which = np.abs(out - base) > 10 * UNIT
        examined.append(WrongRow(row, around, out + noise, base, which, step, unit=UNIT, **known))
    return [(said.cause.kind, said.cause.detail) for said in causes_by_algebra(examined, 1.0)]


def weighted(factors):
    """An answer whose KV rows have their weight times a factor, and no new sum."""
    return lambda row, around: (row.weights(row.logits) * factors(np.arange(len(row.V)))) @ row.V


def test_weights_by_kv_steps_slices_rows_and_shares(rows):
    found = causes(rows, weighted(lambda i: np.choose(i // 64, [1, 0, 1, 2.5])))
    assert found == [("kv-parts", "KV step 3: 2.5 times, KV step 1: left out, KV step 0, 2: 1 times")]
    found = causes(rows, weighted(lambda i: np.where(i // 16 % 4 == 2, 0.5, 1.0)))
    assert found == [("kv-parts", "slice n % 4 = 2: 0.5 times, slice n % 4 = 0..1, 3: 1 times")]
    found = causes(rows, weighted(lambda i: 1.0 + i % 2))
    assert found == [("weights", "KV row n % 2 = 1: 2 times, KV row n % 2 = 0: 1 times")]
    found = causes(rows, weighted(lambda i: np.where(i < 192, 1.0, 3.0)), parts=divided(3, 4))
    assert found == [("share", "share 1: 3 times, share 0: 1 times")]


def test_another_rows_share(rows):
    other = rows[0][0]

    def wrong(row, around):
        first = np.arange(256) < 128
        return (row.weights(row.logits) * first) @ row.V + (other.weights(other.logits) * ~first) @ other.V

    assert causes(rows[1:], wrong, parts=divided(2, 4)) == [("share", "that of query 0")]


def rescored(row, raw):
    return replace(row, raw=raw).output(replace(row, raw=raw).logits)


def noisy(row, size, seed, numbers=(-1, 1)):
    return row.output(row.logits) + size * np.random.default_rng(seed).choice(numbers, 64)


D, KEYS, CHANCE = np.arange(64), np.arange(256), np.random.default_rng(1).uniform(0.5, 1.5, 256)
WRONG = {
    "slices of V with the weights of others": (
        lambda row, around: row.weights(row.logits).reshape(-1, 4, 16)[:, [0, 0, 1, 2]].ravel() @ row.V,
        "kv-parts: ",
    ),
    "weights that no sets share, of more rows than columns": (weighted(lambda i: CHANCE / CHANCE.mean()), ""),
    "some columns": (lambda row, _: np.where(D < 48, row.output(row.logits), row.V[7] / 8), "columns: d 48..63"),
    "columns with small errors beside others": (lambda row, _: noisy(row, np.where(D < 16, 9, 30) * UNIT, 4), ""),
    "outside of the hull": (lambda row, _: 9 * row.V[5] + row.V[100], "outside: "),
    "columns of the product that are left out": (
        lambda row, around: rescored(row, around.raw(np.where(D < 48, row.K, 0.0))),
        "k-columns: d 48..63: left out",
    ),
    "K of the first warp": (
        lambda row, _: rescored(row, row.raw[KEYS - KEYS % 64 + KEYS % 16]),
        "k-elsewhere: slices of 16 KV rows, 4 warps: the slice of the first warp",
    ),
    "noise": (lambda row, _: noisy(row, 0.01, 3, np.random.default_rng(3).standard_normal(64)), ""),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_said_of_rows_that_are_wrong_in_the_same_way(rows, what):
    wrong, said = WRONG[what]
    found = [f"{kind}: {detail}" for kind, detail in causes(rows, wrong)]
    assert found == [said] * bool(said) or (said.endswith(": ") and len(found) == 1 and found[0].startswith(said))


def test_single_weights_if_there_are_fewer_rows_than_columns_and_a_sum_of_v():
    factors = np.random.default_rng(1).choice([0.5, 1.5], 40)
    factors[3:9] = 1.0
    (found,) = causes(rows_of(40), weighted(lambda i: factors))
    assert found == ("weights", "KV rows 0..2, 9..39")
    rows = rows_of(30)
    assert [kind for kind, _ in causes(rows, lambda row, around: np.roll(row.output(row.logits), 1))] == ["v-sum"]


@pytest.mark.parametrize("same", [True, False])
def test_columns_of_the_product_with_other_values(rows, same):
    """Other values of Q, the same for all rows of K, or of K."""
    wrong, order = np.arange(64) % 8 >= 4, np.random.default_rng(2).permuted(np.tile(np.arange(64), (256, 1)), axis=1)

    def other(row, around):
        K = np.take_along_axis(row.K, order, axis=1)
        q = np.where(wrong, np.random.default_rng(2).standard_normal(64), around.q)
        raw = row.K @ q if same else np.where(wrong, K, row.K) @ around.q
        changed = replace(row, raw=raw * around.case.op.params.stored.scale)
        return changed.output(changed.logits)

    assert causes(rows, other) == ([("k-columns", "d % 8 in 4..7")] if same else [])


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_a_statement_holds_for_half_of_all_rows(rows, share):
    wrong = int(share * len(rows))
    lost = weighted(lambda i: i // 64 != 1)
    noise = np.random.default_rng(3).standard_normal(64)
    numbers = {id(row): number for number, (row, _) in enumerate(rows)}

    def some(row, around):
        return lost(row, around) if numbers[id(row)] < wrong else row.output(row.logits) + 0.01 * noise

    assert [kind for kind, _ in causes(rows, some)] == (["kv-parts"] if share > 0.5 else [])


def test_hull():
    square = np.array([[0.0, 0], [1, 0], [0, 1], [1, 1]])
    slack = np.full(2, 1e-9)
    assert not is_outside(square, np.array([0.3, 0.9]), slack)
    assert is_outside(square, np.array([0.3, 1.1]), slack)
    assert is_outside(square[:3], np.array([0.6, 0.6]), slack)
    assert not is_outside(square[:3], np.array([0.6, 0.6]), np.full(2, 0.2))
