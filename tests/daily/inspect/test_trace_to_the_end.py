"""Traces of real kernels on simulated GPUs to their output: correct ones, and faults of the corpus."""

import functools

import numpy as np
import pytest

from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.scenario import expand, load
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cases.scenario.schema import TracePlace
from fattn_probe.daily.inspect.facts import Facts
from fattn_probe.daily.inspect.trace.show import place_of
from fattn_probe.daily.inspect.trace.tracer import Tracer
from fattn_probe.llama.source.faults import corpus
from fattn_probe.verdict.judge.cases import judge_case
from fattn_probe.verdict.truth.error_model.kernel import ASSUMED_DOT2, ASSUMED_WMMA
from tests.daily.inspect.shipped import CASES, inspector_of
from tests.made import CAUSAL, case_of, shape

pytestmark = [pytest.mark.build, pytest.mark.gdb, pytest.mark.network]

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
    inspector, target, inputs = (
        inspector_of(patch=patch),
        parse_target(f"sim:{device}", load_devices()),
        make_inputs(case),
    )
    facts = inspector.inspect(case, inputs, target).result
    assert isinstance(facts, Facts), facts
    output = judge_case(inspector.session, case, target)
    return Tracer(inspector, case, inputs, target, facts), output


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
