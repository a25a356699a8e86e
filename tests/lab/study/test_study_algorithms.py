"""All algorithms compute the same function, and each follows its paper."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from fattn_probe.cases.op import Params
from fattn_probe.lab.study import formulas, papers
from fattn_probe.lab.study.command import ALGORITHMS, Agreement, agreement, difference, formula, run
from fattn_probe.lab.study.formulas import FormulaSizes
from fattn_probe.lab.study.problem import RowState, StudyStep, rows_of, summary_of
from fattn_probe.lab.study.stream_k import divide, stream_k
from fattn_probe.llama.launch.tiles import tiles_of
from fattn_probe.verdict.truth.reference.attention import attention
from tests.lab.study.drawn_ops import made_op, subject_of, subjects


@given(subjects())
@settings(max_examples=200)
def test_all_algorithms_agree_with_each_other_and_with_the_reference(subject):
    found = agreement(subject, {name: run(name, subject) for name in ALGORITHMS})
    assert set(found) == {*ALGORITHMS, "reference"}
    assert all(one.equal for one in found.values()), found


@given(subjects())
@settings(max_examples=100)
def test_counted_traffic_is_the_closed_form(subject):
    for name in ALGORITHMS:
        result, expected = run(name, subject), formula(name, subject)
        assert sum(result.reads.values()) == expected.total_reads, name
        assert sum(result.writes.values()) == expected.total_writes, name


@given(subjects())
@settings(max_examples=50)
def test_every_read_and_write_belongs_to_a_step_and_every_score_is_visited_once(subject):
    for name in ALGORITHMS:
        result = run(name, subject)
        assert sum(step.reads for step in result.trace) == sum(result.reads.values())
        assert sum(step.writes for step in result.trace) == sum(result.writes.values())
    for name in ("fa1", "fa2", "fa3", "split-kv"):
        seen = np.zeros((subject.tensors.n_q, subject.tensors.n_kv), int)
        for step in run(name, subject).trace:
            seen[step.rows, step.kv] += step.what == "tile"
        assert (seen == 1).all(), name


@given(subjects())
@settings(max_examples=100)
def test_the_running_maximum_never_falls_and_ends_at_the_log_sum_exp(subject):
    for name in ALGORITHMS:
        running: dict = {}
        result = run(name, subject)
        for step in result.trace:
            if step.state is None:
                continue
            key = (step.what, step.worker if step.what == "tile" else 0, step.heads.start, step.rows.start)
            if key in running:
                np.testing.assert_array_equal(step.state.before, running[key])
            assert (step.state.maximum >= step.state.before).all()
            assert (step.state.total >= 0).all()
            assert ((step.state.rescale >= 0) & (step.state.rescale <= 1)).all()
            running[key] = step.state.maximum
        for step in {step.rows.start: step for step in result.trace if name == "fa2" and step.what == "tile"}.values():
            with np.errstate(divide="ignore"):
                lse = step.state.maximum + np.log(step.state.total)
            np.testing.assert_array_equal(lse, result.lse[step.rows])


def test_flash_attention_1_loops_over_queries_inside_and_finishes_O_after_every_tile():
    subject = subject_of(made_op(0, n_q=5, n_kv=12), B_r=4, B_c=6, fa1=(4, 6))
    order = {
        name: [(step.rows.start, step.kv.start) for step in run(name, subject).trace if step.what == "tile"]
        for name in ("fa1", "fa2")
    }
    assert order == {"fa1": [(0, 0), (4, 0), (0, 6), (4, 6)], "fa2": [(0, 0), (0, 6), (4, 0), (4, 6)]}
    op = made_op(3, n_q=1, n_kv=8)
    half = replace(op, K=op.K[:, :, :4], V=op.V[:, :, :4])
    first = run("fa1", subject_of(op, fa1=(1, 4))).trace[1].state
    assert first.maximum[0] + np.log(first.total[0]) == pytest.approx(run("fa2", subject_of(half)).lse[0], rel=1e-14)


def test_block_sizes_are_the_papers():
    assert papers.block_sizes(papers.A100_SRAM, 64, 64) == (64, 192)  # d rows of Q at most
    assert papers.block_sizes(papers.A100_SRAM, 128, 128) == (96, 96)
    assert papers.block_sizes(100, 10, 10) == (3, 3)  # ceil(100 / 40)
    assert papers.block_sizes(4 * 576, 576, 512) == (2, 2)


def test_flash_attention_3_reads_a_tile_of_V_one_step_after_its_K():
    subject = subject_of(made_op(1, n_q=2, n_kv=9, hsk=4, hsv=6), B_r=2, B_c=3)
    reads = [step.reads for step in run("fa3", subject).trace]
    Q, K, V = 2 * 4, 3 * 4, 3 * 6
    assert reads == [Q + K, K + V, K + V, V]  # the last is the step that stores O
    assert [step.reads for step in run("fa2", subject).trace] == [Q + K + V, K + V, K + V, 0]


def test_splits_are_whole_tiles_and_cover_everything():
    assert papers.split_ranges(100, 16, 3) == [slice(0, 48), slice(48, 96), slice(96, 100)]
    assert papers.split_ranges(10, 16, 3) == [slice(0, 10)]


@pytest.mark.parametrize("blocks", [1, 3, 10, 16, 1000])
def test_stream_k_is_attention_over_a_whole_op(blocks):
    op = made_op(5, n_seq=2, n_head_kv=2, group=7, n_q=13, n_kv=50, mask="random", sinks=True, params=Params(0.3, 8.0))
    found = stream_k(op, divide(op.shape, 4, 16, blocks))
    expected = attention(op.Q, op.K, op.V, op.mask, params=op.params, sinks=op.sinks)
    np.testing.assert_allclose(found.out.transpose(0, 2, 1, 3), expected, rtol=0, atol=1e-13)


def test_stream_k_reads_a_mask_once_for_all_heads_of_a_tile_and_has_a_fixup_at_seams():
    op = made_op(5, group=8, n_q=4, n_kv=16, mask="causal")
    assert stream_k(op, divide(op.shape, 4, 16, 1)).reads["mask"] == 4 * 16
    op = made_op(5, group=8, n_q=4, n_kv=16, mask="heads")
    assert stream_k(op, divide(op.shape, 4, 16, 1)).reads["mask"] == 8 * 4 * 16
    op = made_op(5, n_head_kv=2, group=2, n_q=8, n_kv=32)
    whole = stream_k(op, divide(op.shape, 4, 16, 4))
    assert "dst_fixup" not in whole.writes
    seams = stream_k(op, divide(op.shape, 4, 16, 3))
    assert seams.writes["dst_fixup"] > 0
    np.testing.assert_allclose(seams.out, whole.out, rtol=0, atol=1e-14)


def test_stream_k_skips_tiles_hidden_by_a_scanned_mask():
    op = made_op(5, n_q=8, n_kv=32)
    mask = np.zeros((1, 1, 8, 32))
    mask[..., 20:] = -np.inf
    op = replace(op, mask=mask)
    launch = divide(op.shape, 8, 8, 3)
    blocks = tuple(
        replace(block, tiles=tiles_of(block.kbc, block.kbc_stop, launch.grid, {(0, 0): 3})) for block in launch.blocks
    )
    short, full = stream_k(op, replace(launch, blocks=blocks)), stream_k(op, launch)
    assert short.reads["K"] == 24 * 8 < full.reads["K"]
    np.testing.assert_allclose(short.out, full.out, rtol=0, atol=1e-14)


def test_at_most_as_many_blocks_as_steps_upstreams_ncols2_and_no_padding_in_a_piece():
    assert len(divide(made_op(0, n_q=2, n_kv=3).shape, 4, 4, 132).blocks) == 1
    groups = {group: divide(made_op(0, group=group).shape, 4, 4, 1).ncols2 for group in (1, 2, 3, 4, 5, 7, 16)}
    assert groups == {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 7: 8, 16: 8}
    launch = divide(made_op(0, group=7, n_q=5, n_kv=50).shape, 8, 64, 1)
    ((_, work),) = launch.parts
    assert launch.rows(work) == (slice(0, 7), slice(0, 5), slice(0, 50))


def test_equal_infinities_agree_NaN_never_does_and_a_fault_in_the_data_shows():
    inf, nan = np.array([-np.inf, 1.0]), np.array([np.nan, 1.0])
    assert difference(inf, inf, 1.0) == 0.0
    assert difference(nan, inf, 1.0) == np.inf
    assert difference(np.array([3.0]), np.array([1.0]), 4.0) == 0.5
    assert difference(np.array([101.0]), np.array([100.0]), 1.0, relative=True) == 0.01
    assert not Agreement(1e-11, 0.0).equal
    assert not Agreement(0.0, 1e-11).equal
    subject = subject_of(made_op(0, n_q=4, n_kv=12))
    results = {name: run(name, subject) for name in ALGORITHMS}
    results["fa2"].out[2, 3] += 1e-9
    assert not agreement(subject, results)["fa2"].equal


SAME = slice(0, 2)


def step(before, maximum, total, what="tile", heads=slice(0, 1)):
    state = RowState(*(np.array(values, float) for values in (before, maximum, total)))
    return StudyStep(what, SAME, slice(4, 8), state, 10, 3, 0, heads, True)


def test_a_row_without_earlier_sums_does_not_count_as_rescaled():
    first = step([-np.inf, -np.inf], [1, 2], [1, 1])
    second = step([1, 2], [3, 2], [2, 3])
    late = step([-np.inf, 2], [1, 4], [1, 3])  # the mask hid everything from the first row until now
    rows = rows_of([first, second, late], 0)
    assert [(row.rose, row.again) for row in rows] == [(0, 0), (1, 2), (1, 1)]
    assert [row.rescale for row in rows] == [None, 1.0, np.exp(-2)]
    assert summary_of([first, second, late]) == {"tiles": 3, "hidden": 0, "rows": 3, "rose": 2}


def test_a_row_is_the_tiles_last_query_of_the_studied_head():
    (row,) = rows_of([step([0, 0], [5, 6], [7, 8])], 0)
    assert (row.step, row.queries, row.kv, row.maximum, row.total) == (1, (0, 2), (4, 8), 6.0, 8.0)
    assert (row.reads, row.writes) == (10, 3)
    both = step([[0, 0], [1, 1]], [[0, 0], [9, 9]], [[1, 1], [2, 2]], heads=slice(4, 6))
    assert [rows_of([both], head)[0].maximum for head in (4, 5)] == [0.0, 9.0]
    assert [rows_of([both], head)[0].rose for head in (4, 5)] == [0, 2]


def test_every_head_of_a_stream_k_tile_has_the_maximum_it_has_alone():
    op = made_op(0, n_head_kv=2, group=3, n_q=4, n_kv=6)
    for head in range(6):
        together = rows_of(run("stream-k", subject_of(op, head=head, B_c=3, blocks=1)).trace, head)
        alone = rows_of(run("fa2", subject_of(op, head=head, B_c=3)).trace, 0)
        np.testing.assert_allclose(
            [row.maximum for row in together if row.what == "tile"],
            [row.maximum for row in alone if row.what == "tile"],
            rtol=1e-14,
        )


def gradients(head, dO, B_r=3, B_c=4):
    return papers.backward(head, papers.flash_attention_2(head, B_r, B_c), dO, B_r, B_c)


@given(subjects())
@settings(max_examples=100)
def test_recomputed_gradients_are_those_of_the_standard_backward(subject):
    head = subject.tensors
    dO = np.random.default_rng(1).normal(size=(head.n_q, head.hsv))
    found = papers.backward(head, run("fa2", subject), dO, subject.tiling.B_r, subject.tiling.B_c)
    for one, other in zip(map(found.array, ("dQ", "dK", "dV")), papers.standard_backward(head, dO), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12 * max(1.0, np.abs(other).max()))


@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("mask", ["none", "causal", "random"])
@pytest.mark.parametrize("sinks", [False, True])
def test_gradients_are_finite_differences(softcap, mask, sinks):
    op = made_op(7, n_q=4, n_kv=9, hsk=3, hsv=5, mask=mask, params=Params(0.7, 0.0, softcap), sinks=sinks)
    head = subject_of(op).tensors
    dO = np.random.default_rng(2).normal(size=(head.n_q, head.hsv))
    found = gradients(head, dO)
    for name in "QKV":
        found_here, expected = found.array(f"d{name}"), by_differences(head, name, dO)
        np.testing.assert_allclose(found_here, expected, rtol=1e-6, atol=1e-8, err_msg=name)


def by_differences(head, name, dO, step=1e-5):
    """d(sum of dO * O) / d(array), one element after the other, central differences."""
    array = getattr(head, name)
    found = np.empty(array.shape)
    for index in np.ndindex(array.shape):
        losses = []
        for sign in (1, -1):
            moved = array.copy()
            moved[index] += sign * step
            losses.append((dO * papers.flash_attention_2(replace(head, **{name: moved}), 4, 4).out).sum())
        found[index] = (losses[0] - losses[1]) / (2 * step)
    return found


@given(subjects())
@settings(max_examples=50)
def test_counted_traffic_of_the_backward_pass_is_the_closed_form(subject):
    head, tiling = subject.tensors, subject.tiling
    found = papers.backward(head, run("fa2", subject), np.ones((head.n_q, head.hsv)), tiling.B_r, tiling.B_c)
    expected = formulas.backward(FormulaSizes.of(head), tiling.B_c)
    assert found.reads.total() == expected.total_reads
    assert found.writes.total() == expected.total_writes


def test_a_fully_masked_row_has_zero_gradients():
    head = subject_of(made_op(0, mask="all")).tensors
    found = gradients(head, np.ones((head.n_q, head.hsv)))
    assert not any(found.array(name).any() for name in ("dQ", "dK", "dV"))
