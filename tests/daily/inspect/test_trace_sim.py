"""Warps of real kernels on simulated GPUs, followed under real gdb."""

from pathlib import Path

import numpy as np
import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.daily.inspect.facts import Facts
from fattn_probe.daily.inspect.trace.tracer import Tracer
from fattn_probe.machine.run.outcome import Ran
from tests.daily.inspect.shipped import CASES, inspector_of
from tests.made import CAUSAL, H200, case_of, shape

pytestmark = [pytest.mark.build, pytest.mark.gdb, pytest.mark.network]
SLOW, NIGHT = pytest.mark.slow, pytest.mark.night  # another kernel than gqa's is compiled

FAULTS = Path(__file__).parent / "faults-by-block.patch"
TWO_STEPS_A_BLOCK = shape(64, 14, 2, 512, 256, CAUSAL)
"""As many tiles as make an H200 give each block two KV steps."""


@pytest.fixture(scope="module")
def inspector():
    return inspector_of()


def tracer_of(inspector, case):
    inputs = make_inputs(case)
    facts = inspector.inspect(case, inputs, H200).result
    assert isinstance(facts, Facts), facts
    return Tracer(inspector, case, inputs, H200, facts)


def agrees(trace, *kb0):
    """There is no deviation, everything was read, and the accumulators are as close to float64 as f16 allows."""
    assert trace.deviation is None, trace.deviation
    assert [step.kb0 for tile in trace.tiles for step in tile.steps] == list(kb0)
    for tile in trace.tiles:
        for step in tile.steps:
            assert len(step.checked) >= 7
            assert np.abs(step.VKQ - step.exact_VKQ)[tile.exists].max() < 5e-3
            assert np.abs(step.KQ - step.exact_KQ)[tile.exists].max() < 1e-5


@pytest.fixture(scope="module")
def gqa(inspector):
    return tracer_of(inspector, CASES["gqa"])


def test_gqa_step_by_step(gqa):
    trace = gqa.trace(block=2, warp=1)
    agrees(trace, 2)
    (tile,) = trace.tiles
    # 8 queries by 8 heads, 16 columns a warp: warp 1 has queries 2 and 3, and 7 heads a K/V head exist
    assert sorted(set(tile.query[tile.exists].tolist())) == [2, 3]
    assert tile.head[tile.exists].tolist() == [0, 1, 2, 3, 4, 5, 6] * 2
    assert tile.steps[0].kv_rows.tolist() == list(range(128, 192))
    assert tile.steps[0].KQ[tile.exists].std() > 0.1
    assert trace.places["logits"].startswith("fattn-mma-f16.cuh:")


@pytest.mark.night
def test_the_archive_of_a_block_holds_what_a_trace_of_each_warp_reads(gqa):
    arrays, trace = gqa.arrays(block=2), gqa.trace(block=2, warp=1)
    (step,) = trace.tiles[0].steps
    assert (arrays["kb0"].tolist(), arrays["warp"].tolist()) == ([2], [0, 1, 2, 3])
    columns = arrays["KQ_C.column"][1] - trace.fragments.first_column
    KQ = step.KQ.astype(np.float32)  # gdb prints nine digits
    assert np.array_equal(KQ[columns, arrays["KQ_C.kv_row"][1]], arrays["before.KQ_C"][0, 1])
    columns = arrays["VKQ_C.column"][1] - trace.fragments.first_column
    assert np.array_equal(step.VKQ[columns, arrays["VKQ_C.d"][1]], arrays["after.VKQ_C"][0, 1])


def test_the_traced_block_must_exist(gqa):
    for place, said in (
        ({"block": 8, "warp": 0}, r"inspect\.trace\.block: there is no block 8, only 0 to 7"),
        ({"block": 0, "warp": 4}, r"inspect\.trace\.warp: there is no warp 4, only 0 to 3"),
        ({"block": 2, "warp": 0, "kb0": 3}, r"inspect\.trace\.kb0: block 2 does not do step 3, only 2 to 2"),
    ):
        with pytest.raises(InputError, match=said):
            gqa.trace(**place)


def test_without_python_in_gdb():
    trace = tracer_of(inspector_of(python=False), CASES["gqa"]).trace(block=1, warp=0)
    agrees(trace, 1)


@NIGHT
def test_warps_that_share_their_columns(inspector):
    tracer = tracer_of(inspector, case_of(shape(128, 8, 2, 2, 512, CAUSAL)))
    rows = set()
    for warp in (0, 3):
        trace = tracer.trace(block=1, warp=warp)
        assert trace.fragments.np == 4
        agrees(trace, 1)
        rows |= set(trace.tiles[0].steps[0].kv_rows.tolist())
    assert rows == {128 + 64 * half + 16 * warp + row for half in (0, 1) for warp in (0, 3) for row in range(16)}


@NIGHT
def test_one_head_a_tile_without_a_mask(inspector):
    tracer = tracer_of(inspector, case_of(shape(64, 8, 8, 64, 512)))
    assert tracer.facts.choice.template["ncols2"] == 1
    trace = tracer.trace(block=3, warp=2)
    agrees(trace, *(kb0 for tile in tracer.facts.blocks[3].tiles for kb0 in range(tile.kb0_start, tile.kb0_stop)))


@SLOW
def test_steps_are_in_order_and_one_can_be_selected(inspector):
    tracer = tracer_of(inspector, case_of(TWO_STEPS_A_BLOCK))
    trace = tracer.trace(block=12, warp=2)
    agrees(trace, 0, 1)
    first, second = trace.tiles[0].steps
    assert np.array_equal(first.VKQ, second.VKQ_before)
    only = tracer.trace(block=12, warp=2, kb0=0).tiles[0].steps
    assert [step.kb0 for step in only] == [0]
    assert np.array_equal(only[0].VKQ, first.VKQ)


@pytest.fixture(scope="module")
def faulty():
    return tracer_of(inspector_of(patch=FAULTS), case_of(TWO_STEPS_A_BLOCK))


@NIGHT  # CI has test_trace_reference.py, and real faults in test_trace_to_the_end.py and test_replay_cli.py
@pytest.mark.parametrize(
    ("block", "quantity", "kb0"),
    [
        (0, "KQ", 0),
        (2, "KQ_max", 0),
        (4, "P", 0),
        (6, "KQ_rowsum", 0),
        (8, "VKQ rescaled", 1),  # in the first step there is nothing to rescale
        (10, "VKQ", 0),
        (12, None, None),
    ],
)
def test_a_planted_fault_is_named_by_quantity_and_step(faulty, block, quantity, kb0):
    deviation = faulty.trace(block=block, warp=1).deviation
    assert (deviation and deviation.quantity, deviation and deviation.kb0) == (quantity, kb0)


def found_by(tracer):
    outcome = tracer.inspector.session.run(tracer.case, tracer.inputs, H200)
    assert isinstance(outcome, Ran), outcome
    return tracer.find_not_finite(outcome.result.dst)


@NIGHT
def test_a_sum_beyond_f16_is_found_where_it_overflows(inspector):
    case = case_of(shape(64, 8, 8, 33, 512, "data: {V: {kind: uniform, scale: 0.1, mean: 60000}}"))
    found = found_by(tracer_of(inspector, case))
    assert (found.tensor, found.value, found.kb0, found.block) == ("VKQ", np.inf, 0, 0)
    assert found.thread == (0, 0)
    assert "f16" in found.words


def test_a_correct_op_has_no_finding(gqa):
    assert found_by(gqa) is None
