"""Warps of real kernels on simulated GPUs, followed under real gdb to their output; and faults of the corpus."""

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.scenario import expand, load
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cases.scenario.schema import TracePlace
from fattn_probe.daily.inspect.facts import Facts
from fattn_probe.daily.inspect.inspector import Inspector
from fattn_probe.daily.inspect.trace.show import place_of
from fattn_probe.daily.inspect.trace.tracer import Tracer
from fattn_probe.llama.launch.constants import default_constants
from fattn_probe.llama.source.faults import corpus
from fattn_probe.machine.run.outcome import Ran
from fattn_probe.verdict.judge.cases import judge_case
from fattn_probe.verdict.truth.error_model.kernel import ASSUMED_DOT2, ASSUMED_WMMA
from tests.daily.inspect.shipped import CASES, inspector_of
from tests.made import CAUSAL, H200, case_of, shape

pytestmark = [pytest.mark.build, pytest.mark.gdb, pytest.mark.network]

SLOW, NIGHT = pytest.mark.slow, pytest.mark.night  # another kernel than gqa's is compiled

FAULTS_BY_BLOCK = Path(__file__).parent / "faults-by-block.patch"
TWO_STEPS_A_BLOCK = shape(64, 14, 2, 512, 256, CAUSAL)
"""As many tiles as make an H200 give each block two KV steps."""


@pytest.fixture(scope="module")
def inspector():
    return inspector_of()


def tracer_of(inspector, case, target=H200):
    inputs = make_inputs(case)
    facts = inspector.inspect(case, inputs, target).result
    assert isinstance(facts, Facts), facts
    return Tracer(inspector, case, inputs, target, facts)


def agrees(trace, *kb0):
    """There is no deviation, everything was read, and the accumulators are as close to float64 as f16 allows."""
    assert trace.deviation is None, trace.deviation
    assert [step.kb0 for tile in trace.tiles for step in tile.steps] == list(kb0)
    for tile in trace.tiles:
        for step in tile.steps:
            assert len(step.checked) >= 7
            assert np.abs(step.VKQ - step.exact_VKQ)[tile.exists].max() < 5e-3
            assert np.abs(step.KQ - step.exact_KQ)[tile.exists].max() < 1e-5


def test_blocks_are_not_read_if_the_source_lacks_the_lines_of_their_tiles(inspector, monkeypatch):
    """The kernel once ran to its end in one lane, which failed and looked like a fault."""
    located = Inspector.located

    def lacking(self, build):
        found = located(self, build)
        return replace(found, locations={**found.locations, "tile_call": ()})

    monkeypatch.setattr(Inspector, "located", lacking)
    facts = inspector.inspect(CASES["gqa"], make_inputs(CASES["gqa"]), H200).result
    assert isinstance(facts, Facts) and not facts.fault and not facts.blocks
    assert [kernel.kernel.partition("<")[0] for kernel in facts.kernels][1:] == ["flash_attn_stream_k_fixup_uniform"]


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


@pytest.mark.parametrize("loads", [None, (128, 64)])
def test_the_steps_of_the_model_are_those_that_the_host_launched_whatever_was_read_from_the_source(
    loads, gqa, monkeypatch
):
    read = default_constants().with_mma((64, 64, 64), 90, loads)
    monkeypatch.setattr("fattn_probe.daily.inspect.trace.tracer.known_constants", lambda tree: read)
    (rows, geometry), missing = gqa.model()
    assert (rows.kernel.nbatch_fa, geometry.grid.iter_k, missing) == (64, 4, "")


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
        ({"block": 2, "warp": 0, "kb0": 3}, r"inspect\.trace\.kb0: block 2 does not compute step 3, only 2 to 2"),
    ):
        with pytest.raises(InputError, match=said):
            gqa.trace(**place)


def test_without_python_in_gdb():
    agrees(tracer_of(inspector_of(python=False), CASES["gqa"]).trace(block=1, warp=0), 1)


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
def faulty_blocks():
    return tracer_of(inspector_of(patch=FAULTS_BY_BLOCK), case_of(TWO_STEPS_A_BLOCK))


@NIGHT  # CI has test_trace_reference.py, and real faults in test_replay.py
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
def test_a_planted_fault_is_named_by_quantity_and_step(faulty_blocks, block, quantity, kb0):
    deviation = faulty_blocks.trace(block=block, warp=1).deviation
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


VEC = case_of(shape(64, 4, 2, 1, 512, "type_K: q8_0", "type_V: q8_0", "sinks: true", CAUSAL))
TILE = case_of(shape(64, 2, 2, 4, 500, "sinks: true", CAUSAL))  # without fast f16, two steps a block
CORRECT = {
    "mma": (CASES["gqa"], "h200", 0),
    "tile": (TILE, "gtx1060", 5),
    "tile in f16": (CASES["tile-hsk=40-n_q=5"], "h200", 5),  # a kernel that other inspections have too
    "vec": (VEC, "h200", 5),
    **{f"tile on {device}": (CASES["gqa"], device, 5) for device in ("mi50", "mi300x", "rx7900xtx")},
    **{f"vec on {device}": (VEC, device, 5) for device in ("mi50", "mi300x", "rx7900xtx", "rx9070xt")},
    "tile, several heads, on rx7900xtx": (CASES["sparse-hsk=576-hsv=512-n_head=16-V=view_of_K"], "rx7900xtx", 5),
}
MARKS = {kind: [pytest.mark.night] for kind in CORRECT} | {"mma": [], "tile in f16": [pytest.mark.slow]}
"""A correct tile kernel and a wrong vec kernel run in CI; the others take the same paths, with kernels of their own."""
SHIPPED = [case for case in CASES.values() if case.op.sizes.flop < 3e10]


def inspected(case, device, patch=None):
    """A tracer of a case, and the verdict on its output."""
    inspector, target = inspector_of(patch=patch), parse_target(f"sim:{device}", load_devices())
    return tracer_of(inspector, case, target), judge_case(inspector.session, case, target)


def followed(case, device, place=None):
    """The trace of a correct kernel, from which nothing deviates to dst."""
    tracer, output = inspected(case, device)
    assert output.status == "pass"
    trace = tracer.follow(output, place)
    assert (trace.deviation, trace.stopped, trace.missing) == (None, (), "")
    assert trace.stages[-1].where == "dst"
    return trace


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=MARKS[kind]) for kind in CORRECT])
def test_a_correct_kernel_is_followed_to_dst(kind):
    case, device, registers = CORRECT[kind]
    trace = followed(case, device)
    assert len([stage for stage in trace.stages if not stage.stored]) > registers
    assert all(stage.place for stage in trace.stages)
    assert trace.row == (0, 0, 0)
    assert trace.assumed == (ASSUMED_DOT2 if kind in ("tile on mi50", "tile on mi300x") else "")
    if kind == "mma":
        (tile,) = trace.tiles
        assert {item.name for item in tile.steps[-1].checked} >= {"KQ", "P", "VKQ", "KQ_rowsum at the end"}


@pytest.mark.night
@pytest.mark.parametrize("device", ["rx7900xtx", "rx9060xt", "rx9070xt", "mi100", "mi210", "mi300x"])
def test_the_accumulators_of_amds_matrix_instructions_are_read_and_followed_to_dst(device):
    trace = followed(CASES["sinks"], device, place=TracePlace(block=7, warp=1))
    assert trace.assumed == (ASSUMED_WMMA if device == "rx9060xt" else "")
    (tile,) = trace.tiles
    assert {item.name for item in tile.steps[-1].checked} >= {"KQ", "P", "KQ_max", "VKQ rescaled", "VKQ"}
    assert tile.exists.all() and np.abs(tile.steps[-1].VKQ).max() > 0.5


@pytest.mark.night
@pytest.mark.parametrize("case", SHIPPED, ids=lambda case: case.name)
def test_every_shipped_case_is_followed_to_dst(case):
    followed(case, "h200")


END = ("KQ_max at the end", "KQ_rowsum at the end")
FAULTS = {
    "7192-alibi-head": ("KQ_max",),
    "8542-softcap-scale": ("KQ",),
    "13415-v-tile": ("VKQ",),
    "14500-mask-rows": ("KQ_max",),
    "14628-fixup-layout": ("output",),
    "15157-sinks-each-warp": END,
    "15157-sinks-twice": END,
    "17796-kv-tail-load": ("KQ",),
    "18606-small-maximum-shift": ("KQ_max",),
    "19098-mma-first-maximum": ("KQ_max at the start",),
    "21159-fixup-first-block": ("output",),
    "1036-tile-v-stride": ("VKQ",),
    "14500-tile-mask-rows": ("KQ",),
    "15178-tile-sinks-ignored": ("KQ_sum",),
    "16492-tile-kv-tail": ("KQ_max",),
    "16540-tile-f16-scale": ("output",),
    "16540-tile-oob-maximum": ("KQ_max",),
    "2031-vec-v-step": ("VKQ",),
    "7527-q8_1-offset": ("KQ",),
    "12183-combine-many-blocks": ("output",),
    "14500-vec-mask-rows": ("KQ",),
    "14916-vec-pointer-advance": ("steps done",),
    "15091-vec-sinks-each-block": ("KQ_max", "KQ_sum"),
    "17549-vec-f16-product": ("KQ",),
    "19098-vec-first-maximum": ("KQ_max",),
    "12032-row-sums": ("KQ_rowsum at the end",),
    "18481-operands-swapped": ("KQ",),
    "19806-output-remainder": ("VKQ",),
    "19806-running-maximum": ("KQ_max",),
    "22880-scrambled-output": ("VKQ",),
    "19806-v-transposed": ("VKQ",),
    "15884-f16-product": ("KQ",),
    "1087-sudot4-sign": ("KQ",),
}
"""The first quantity that each fault's line changes: mma, tile and vec kernels of NVIDIA, then the same of AMD."""
BY_NAME = {fault.patch.name: fault for fault in corpus()}
IN_CI = "15091-vec-sinks-each-block"


@functools.lru_cache(1)  # two tests of CI follow one fault
def faulty(name):
    fault = BY_NAME[name]
    (shown, *_) = fault.shows
    return inspected(expand(load(shown.scenario))[0], shown.device, patch=fault.patch.path)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == IN_CI else pytest.mark.night) for name in FAULTS]
)
def test_a_fault_is_placed_at_its_line_or_after_it(name):
    tracer, output = faulty(name)
    assert output.status == "fail"
    trace = tracer.follow(output, None)
    deviation = trace.deviation
    assert deviation is not None
    assert deviation.quantity in FAULTS[name], deviation
    assert place_of(trace)


@pytest.mark.slow
def test_a_place_is_followed_although_another_block_is_wrong():
    tracer, output = faulty(IN_CI)
    trace = tracer.follow(output, TracePlace(block=1, warp=2))
    assert (trace.block, trace.warp) == ((0, 1, 0), 2)
