"""A warp read under a debugger, which here is a script, and the fragments of its registers."""

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from fattn_probe.daily.inspect import procedures
from fattn_probe.daily.inspect.procedures.blocks import BlockReader
from fattn_probe.daily.inspect.procedures.warp import read_trace
from fattn_probe.daily.inspect.trace.fragments import LANES, LAYOUTS, Fragment, WarpFragments
from fattn_probe.machine.debug.protocol import Frame, StopRecord
from tests.daily.inspect.traced import CASE, INPUTS, NARROW, VOLTA, WIDE, Warp, fragments_of, judge, whole
from tests.made import ROOT
from tests.stand_in import StandIn

ITERATION = "flash_attn_ext_f16_iter<64, 64, 8, 2, 4, false, ggml_cuda_mma::tile<16, 8, __half2> >"
PROCESS = "flash_attn_ext_f16_process_tile<64, 64, 8, 2, 4, false>"
LINES = {"logits": 733, "softmax": 924, "rescaled": 968, "accumulated": 1402, "sunk": 1490}
ANCHORS = {
    "logits": ["fattn-mma-f16.cuh:733"],
    "softmax": ["fattn-mma-f16.cuh:913", "fattn-mma-f16.cuh:924"],
    "rescaled": ["fattn-mma-f16.cuh:968"],
    "accumulated": ["fattn-mma-f16.cuh:1402"],
    "sunk": ["fattn-mma-f16.cuh:1490"],
}


def plan(**more):
    return {
        "anchors": ANCHORS,
        "block": [2, 0, 0],
        "warp": 0,
        "simulated": True,
        "wave": 32,
        "matrix": "",
        "tiles": 1,
        "kb0": None,
        "until_not_finite": False,
    } | more


class Fibers(StandIn):
    """A debugger on whose program the lanes of one warp stop one by one, with what a `Warp` left for readings."""

    def __init__(self, document, tiles=1):
        anchor = {"softmax": ["softmax", "softmax"]}
        self.stops = [
            (name, reading | {"tile": tile})
            for tile in range(tiles)
            for reading in document["readings"]
            for name in anchor.get(reading["anchor"], [reading["anchor"]])
        ]
        self.document = document
        self.points = {}
        self.now = None
        self.settings = []
        self.lane = "simt::self->lane"

    def execute(self, command):
        self.settings.append(command)
        kind = {"whatis KQ_C[0]": "KQ", "whatis VKQ_C[0]": "VKQ"}.get(command)
        if kind is None:
            return ""
        tile = self.document[kind]
        spelt = {"half2": "__half2"}.get(tile["T"], tile["T"])
        return f"type = ggml_cuda_mma::tile<{tile['I']}, {tile['J']}, {spelt}, (ggml_cuda_mma::data_layout)0>\n"

    def insert_near(self, location, condition=""):
        number = len(self.points) + 1
        self.points[number] = (location, condition)
        return [number]

    def delete(self, *removed):
        for number in removed:
            del self.points[number]

    def frames(self, limit):
        return [Frame(ITERATION, "fattn-mma-f16.cuh", 733)]

    def resume(self, command):
        assert command == "continue"
        while self.stops:
            anchor, self.now = self.stops.pop(0)
            hit = tuple(n for n, (at, condition) in self.points.items() if self.stands(anchor, at, condition))
            if hit:
                function = PROCESS if anchor in {"accumulated", "sunk"} else ITERATION
                return StopRecord("breakpoint", hit, function, f"overlay/x/../{'fattn-mma-f16.cuh'}", LINES[anchor])
        return StopRecord("exited", detail="0")

    def stands(self, anchor, location, condition):
        if location not in ANCHORS[anchor]:
            return False
        kb0 = self.now["kb0"]
        tests = [part for part in ("kb0 == 1", "kb0 == 2") if part in condition]
        return not tests or f"kb0 == {kb0}" in tests

    def evaluate(self, expressions, level=0):
        return [self.value(expression) for expression in expressions]

    def value(self, expression):
        if expression == "kb0":
            return None if self.now["kb0"] is None else str(self.now["kb0"])
        if expression == self.lane:
            return str(self.now["lane"])
        if expression == "indices != 0":
            return "false"
        name = expression.strip("*").partition("@")[0]
        values = self.now["values"].get(name)
        if values is None:
            return None
        if name == "VKQ_C":
            pairs = zip(values[::2], values[1::2], strict=True)
            return "{{x = {" + ", ".join(f"{{x = {{bits = {x}}}, y = {{bits = {y}}}}}" for x, y in pairs) + "}}}"
        return "{" + ", ".join(f"{value:.9g}" for value in values) + "}"


@pytest.mark.parametrize(("kind", "ncols1"), [(WIDE, 8), (NARROW, 4)])
def test_readings_equal_the_registers(kind, ncols1):
    document = Warp(CASE, INPUTS, fragments_of(kind, ncols1, 2), whole()).document()
    found = json.loads(json.dumps(read_trace(Fibers(document), plan())))
    assert found["template"] == {"DKQ": 64, "DV": 64, "ncols1": 8, "ncols2": 2, "nwarps": 4}
    assert (found["KQ"], found["VKQ"]) == (document["KQ"], document["VKQ"])
    assert found["places"] == {anchor: f"fattn-mma-f16.cuh:{line}" for anchor, line in LINES.items()}
    assert found["stopped"] == []
    assert len(found["readings"]) == len(document["readings"])
    for ours, theirs in zip(found["readings"], document["readings"], strict=True):
        assert {key: ours[key] for key in ("anchor", "lane", "tile", "kb0")} == {
            key: theirs[key] for key in ("anchor", "lane", "tile", "kb0")
        }
        assert ours["values"].keys() == theirs["values"].keys()


def test_lanes_may_come_in_any_order_and_past_one_another():
    document = Warp(CASE, INPUTS, fragments_of(WIDE, 8, 2), work := whole()).document()
    # Between two warp instructions each lane runs on alone: softmax and rescaled of a lane follow one another
    order = {"logits": 0, "softmax": 1, "rescaled": 1, "accumulated": 2, "sunk": 3}
    document["readings"].sort(
        key=lambda r: (99 if r["kb0"] is None else r["kb0"], order[r["anchor"]], r["lane"] * 7 % 32)
    )
    trace = judge(read_trace(Fibers(document), plan()), work)
    assert trace.deviation is None
    assert len(trace.tiles[0].steps[-1].checked) == 7 + 3


THREAD = "(simt::self->thread_idx.x + simt::blockDim.x * simt::self->thread_idx.y)"


@pytest.mark.parametrize(
    ("wave", "warp"),
    [(32, "simt::self->warp->index"), (64, f"{THREAD} / (simt::blockDim.x < 64 ? simt::blockDim.x : 64)")],
)
def test_only_the_warp_asked_for_stops_and_the_breakpoints_are_taken_back(monkeypatch, wave, warp):
    debugger = Fibers(Warp(CASE, INPUTS, fragments_of(WIDE, 8, 2), whole()).document())
    inserted = Mock(side_effect=debugger.insert_near)
    monkeypatch.setattr(debugger, "insert_near", inserted)
    debugger.lane = warp.replace("/", "%") if wave == 64 else debugger.lane
    read_trace(debugger, plan(warp=3, block=[5, 1, 0]) | {"wave": wave})
    asked = f"{warp} == 3 && simt::blockIdx.x == 5 && simt::blockIdx.y == 1 && simt::blockIdx.z == 0"
    assert {condition for (_, condition), _ in inserted.call_args_list} == {asked}
    assert not debugger.points


def test_one_step_needs_the_next_ones_beginning():
    debugger = Fibers(Warp(CASE, INPUTS, fragments_of(WIDE, 8, 2), work := whole()).document())
    found = read_trace(debugger, plan(kb0=1))
    assert {(r["anchor"], r["kb0"]) for r in found["readings"]} == {
        *(("logits", 1), ("softmax", 1), ("rescaled", 1), ("logits", 2))
    }
    assert debugger.stops  # it did not follow the rest
    trace = judge(found, work)
    (step,) = trace.tiles[0].steps
    assert step.kb0 == 1
    assert {item.name for item in step.checked} >= {"KQ", "P", "VKQ"}
    assert trace.deviation is None


def test_all_tiles_of_a_block_are_followed():
    document = Warp(CASE, INPUTS, fragments_of(WIDE, 8, 2), whole(kb0_stop=2)).document()
    found = read_trace(Fibers(document, tiles=3), plan(tiles=3))
    assert {r["tile"] for r in found["readings"]} == {0, 1, 2}
    assert len(found["readings"]) == 3 * len(document["readings"])


def test_the_first_value_that_is_not_finite_ends_it():
    def fault(name, kb0, values):
        if (name, kb0) == ("P", 2):
            values[3, 5] = math.nan
        return values

    document = Warp(CASE, INPUTS, fragments_of(WIDE, 8, 2), whole(), fault=fault).document()
    found = read_trace(Fibers(document), plan(until_not_finite=True))
    last = found["readings"][-1]
    assert (last["anchor"], last["kb0"]) == ("softmax", 2)
    # all lanes of that anchor are there: the first one in lane order is not the first that stopped
    assert sum((r["anchor"], r["kb0"]) == ("softmax", 2) for r in found["readings"]) == 32
    assert any(math.isnan(v) for r in found["readings"] for v in r["values"].get("KQ_C", []))


def test_a_program_that_ends_says_why():
    document = Warp(CASE, INPUTS, fragments_of(WIDE, 8, 2), whole()).document()
    found = read_trace(Fibers(document), plan(tiles=2))
    assert found["stopped"] == ["exited", "0", ""]
    assert len(found["readings"]) == len(document["readings"])


@pytest.mark.parametrize("module", [path.stem for path in Path(procedures.__file__).parent.glob("*.py")])
def test_a_procedure_needs_the_standard_library_alone(module):
    name = "fattn_probe.daily.inspect.procedures" + ("" if module == "__init__" else f".{module}")
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {name}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_block_is_read_once_where_two_breakpoints_are_at_one_place():
    """The line of a branch that is not compiled is the next line that is (the tile kernel, several heads)."""
    values = {"sequence": "3", "simt::blockIdx": "{x = 1, y = 0, z = 2}"}
    debugger = SimpleNamespace(evaluate=lambda asked: [values[name] for name in asked])
    reader = BlockReader({4: "tile_block", 7: "tile_block"})
    found = reader.first(debugger, StopRecord("breakpoint", (4, 7)), ("sequence",))
    assert found == {"sequence": 3, "at": "tile_block", "blockIdx": [1, 0, 2]}


KINDS = pytest.mark.parametrize(
    ("kind", "ncols1", "ncols2"),
    [(WIDE, 8, 8), (WIDE, 32, 1), (WIDE, 16, 1), (NARROW, 2, 4), (NARROW, 8, 1), (NARROW, 2, 8), (VOLTA, 32, 1)],
    ids=lambda value: "" if isinstance(value, tuple) else str(value),
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_layout_holds_every_element_once(layout):
    i, j = Fragment(*layout).place()
    assert sorted(zip(i.ravel().tolist(), j.ravel().tolist(), strict=True)) == [
        (a, b) for a in range(layout[0]) for b in range(layout[1])
    ]


# PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type": of a lane's groupID = lane / 4 and
# threadID_in_group = lane % 4, rows and columns of the accumulators c0 to c3 and of the f16 operands A and B
PTX_C = {0: (0, 0), 1: (0, 1), 2: (8, 0), 3: (8, 1)}
PTX_A = {0: (0, 0), 1: (8, 0), 2: (0, 4), 3: (8, 4)}
PTX_B = {0: (0, 0), 1: (0, 4)}


@pytest.mark.parametrize("lane", range(LANES))
def test_tiles_are_the_fragments_of_the_instruction(lane):
    group, within = divmod(lane, 4)
    c, a, b = (Fragment(*shape).place() for shape in ((16, 8, "float"), (16, 8, "half2"), (8, 8, "half2")))
    assert {r: (c[0][lane, r], c[1][lane, r]) for r in PTX_C} == {
        r: (group + row, 2 * within + column) for r, (row, column) in PTX_C.items()
    }
    assert {r: (a[0][lane, r], a[1][lane, r]) for r in PTX_A} == {
        r: (group + row, within + pair) for r, (row, pair) in PTX_A.items()
    }
    assert {r: (b[0][lane, r], b[1][lane, r]) for r in PTX_B} == {
        r: (group + column, within + pair) for r, (column, pair) in PTX_B.items()
    }


AMD = np.load(Path(__file__).parents[2] / "native/data/amd_layouts.npz")
"""Register, lane and first bit of each element of the sums D, [row][column], as AMD's calculator has them."""


@pytest.mark.parametrize(
    ("fragment", "instructions"),
    [
        (Fragment(16, 16, "float", 64, "mfma"), ["gfx942/v_mfma_f32_16x16x16_f16"]),
        (Fragment(16, 16, "float", 32, "rdna3"), ["gfx1100/v_wmma_f32_16x16x16_f16"]),
        (Fragment(16, 16, "float", 32, "rdna4"), ["gfx1201/v_wmma_f32_16x16x16_f16"]),
        # two products, of the even and of the odd rows of V's transpose
        (
            Fragment(16, 16, "half2", 32, "rdna3"),
            ["gfx1100/v_wmma_f16_16x16x16_f16", "gfx1100/v_wmma_f16_16x16x16_f16/high"],
        ),
        (Fragment(16, 16, "half2", 32, "rdna4 scrambled"), ["gfx1201/v_wmma_f16_16x16x16_f16"] * 2),
        (Fragment(16, 8, "half2", 32, "rdna4"), ["gfx1201/v_wmma_f16_16x16x16_f16"]),
    ],
    ids=str,
)
def test_sums_of_amd_lie_where_its_calculator_says(fragment, instructions):
    columns, along = fragment.halves()
    for product, instruction in enumerate(instructions):
        register, lane, first = np.moveaxis(AMD[f"{instruction}/D"][0].astype(int), -1, 0)
        number = 2 * register + first // 16 if fragment.T == "half2" else register
        number += product * columns.shape[1] // 2 * (fragment.layout == "rdna4 scrambled")
        row, column = np.mgrid[:16, :16]
        assert (columns[lane, number] == column).all()
        assert (along[lane, number] == row * len(instructions) + product).all()
    assert fragment.known


def test_a_product_through_the_fragments_is_the_product():
    # What mma.m16n8k16 does: lane by lane the operands are taken apart, and the result is put together again
    rng = np.random.default_rng(1)
    A, B = rng.normal(size=(16, 16)), rng.normal(size=(16, 8))
    a, b, c = (Fragment(*shape).place() for shape in ((16, 8, "half2"), (8, 8, "half2"), (16, 8, "float")))
    registers_A = np.stack([A[a[0], 2 * a[1]], A[a[0], 2 * a[1] + 1]], axis=-1)
    registers_B = np.stack([B[2 * b[1], b[0]], B[2 * b[1] + 1, b[0]]], axis=-1)
    total = np.zeros((16, 8))
    for group in range(4):  # threadID_in_group: which k a lane holds
        rows, columns = np.arange(8) * 4 + group, np.arange(8) * 4 + group
        for half in range(2):
            for k in range(2):
                left = np.concatenate([registers_A[rows, 2 * k, half], registers_A[rows, 2 * k + 1, half]])
                total += np.outer(left, registers_B[columns, k, half])
    assert np.allclose(total, A @ B)
    assert np.allclose(total[c], (A @ B)[c])


@KINDS
def test_the_warps_of_a_block_cover_its_KQ_once(kind, ncols1, ncols2):
    nbatch_fa = 64
    seen = []
    for warp in range(4):
        fragments = fragments_of(kind, ncols1, ncols2, warp)
        numbers = nbatch_fa // fragments.np // fragments.kv_per_tile * fragments.KQ.ne
        assert fragments.nbatch_fa(numbers) == nbatch_fa
        places = fragments.KQ_places(numbers)
        seen += list(zip(places.column.ravel(), places.along.ravel(), strict=True))
    warps = 4 * fragments.cols_per_warp // fragments.np
    assert sorted(seen) == [(column, row) for column in range(warps) for row in range(nbatch_fa)]


@KINDS
def test_a_warp_holds_every_d_of_its_columns_once_and_a_lane_their_maxima(kind, ncols1, ncols2):
    fragments = fragments_of(kind, ncols1, ncols2, warp=3)
    places = fragments.VKQ_places(128 // fragments.d_per_tile * 2 * fragments.VKQ.ne)
    columns = range(fragments.first_column, fragments.first_column + fragments.cols_per_warp)
    seen = sorted(zip(places.column.ravel(), places.along.ravel(), strict=True))
    assert seen == [(column, d) for column in columns for d in range(128)]
    fragments = fragments_of(kind, ncols1, ncols2, warp=2)
    own = fragments.KQ_places(fragments.KQ.ne).column
    maxima = fragments.state_columns()
    for lane in range(LANES):
        assert set(maxima[lane]) == set(own[lane])


def test_four_warps_share_eight_columns():
    assert [fragments_of(NARROW, 2, 4, warp).first_column for warp in range(4)] == [0, 0, 0, 0]
    assert fragments_of(NARROW, 2, 4).np == 4
    assert [fragments_of(WIDE, 8, 8, warp).first_column for warp in range(4)] == [0, 16, 32, 48]


def test_fragments_follow_from_the_debuggers_types():
    document = {
        "template": {"DKQ": 64, "DV": 64, "ncols1": 8, "ncols2": 8, "nwarps": 4},
        "KQ": {"I": 16, "J": 16, "T": "float"},
        "VKQ": {"I": 16, "J": 8, "T": "half2"},
    }
    assert WarpFragments.of(document, 1) == fragments_of(WIDE, 8, 8, 1)
    assert not Fragment(16, 16, "half2").known
