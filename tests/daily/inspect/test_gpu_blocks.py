"""Blocks of a real GPU: the places of its threads, the records of the blocks, and the facts that follow."""

import gzip
import json
from pathlib import Path

import pytest

from fattn_probe.daily.inspect.assemble import Tiling, fault_of
from fattn_probe.daily.inspect.facts import Choice
from fattn_probe.daily.inspect.procedures.blocks import ended, read_gpu_blocks
from fattn_probe.machine.debug.protocol import StopRecord
from tests.stand_in import StandIn

H200 = json.loads(gzip.decompress((Path(__file__).parents[2] / "data/h200-inspect.json.gz").read_bytes()))
FILE = "/build/overlay/ggml/src/ggml-cuda/template-instances/../fattn-mma-f16.cuh"
ANCHORS = {
    "kbc": ["fattn-mma-f16.cuh:1908"],
    "vec_block": ["fattn-vec.cuh:254"],
    "tile_block": ["fattn-tile.cuh:957"],
    "tile_call": ["fattn-mma-f16.cuh:1939", "fattn-mma-f16.cuh:1944", "fattn-mma-f16.cuh:1988"],
    "launched": ["fattn-common.cuh:1266"],
}
HEAD = "  BlockIdx ThreadIdx To BlockIdx ThreadIdx Count                 PC                  Filename  Line\nKernel 0\n"
# As cuda-gdb 13.0 printed it on an H200, but for the blocks' numbers
EARLY = f"*  (0,0,0)   (0,0,0)     (1,0,0)  (31,3,0)   256 0x00007ffdb5e03ea0 {FILE}  1908 \n"
LATE = f"   (2,0,0)   (0,0,0)     (2,0,0)  (31,3,0)   128 0x00007ffdb5e03d10 {FILE}  1899 \n"
THEN = f"   (2,0,0)   (0,0,0)     (2,0,0)  (31,3,0)   128 0x00007ffdb5e03ea0 {FILE}  1908 \n"
CALLS = (
    f"   (0,0,0)   (0,0,0)     (0,0,0)  (31,0,0)    32 0x00007ffdb5e833f0 {FILE}  1988 \n"
    f"   (0,0,0)   (0,1,0)     (1,0,0)  (31,3,0)   224 0x00007ffdb5e833e0 {FILE}  1990 \n"
    f"   (2,0,0)   (0,1,0)     (2,0,0)  (31,3,0)    96 0x00007ffdb5e833f0 {FILE}  1988 \n"
)


class Gpu(StandIn):
    """A debugger on a GPU of three blocks: its stops, and at each what `info cuda threads` prints."""

    def __init__(self, *stops):
        self.stops = list(stops)
        self.threads, self.block, self.points = "", 0, {}

    def insert(self, location):
        self.points[len(self.points) + 1] = location
        return len(self.points)

    def insert_near(self, location, condition=""):
        return [self.insert(location)]

    def delete(self, *numbers):
        for number in numbers:
            del self.points[number]

    def resume(self, command):
        assert command == "continue"
        location, self.threads = self.stops.pop(0)
        number = next((number for number, place in self.points.items() if place == location), None)
        if number is None:
            return StopRecord(
                "signal", function="ns::ggml_cuda_memcpy_1<16, 0>", file="common.cuh", line=822, detail=location
            )
        return StopRecord("breakpoint", (number,), "flash_attn_ext_f16<64>", FILE, int(location.rpartition(":")[2]))

    def execute(self, command):
        if command == "info cuda threads":
            return HEAD + self.threads
        self.block = int(command.removeprefix("cuda block (").partition(",")[0])
        return ""

    def evaluate(self, names, level=0):
        known: dict = {
            "kbc": self.block * 3,
            "kbc_stop": self.block * 3 + 3,
            "iter_k": 4,
            "iter_j": 1,
            "ne03": 1,
            "ne33": 1,
        }
        known |= {"sequence": 0, "z_KV": 0, "zt_gqa": 0, "jt": 0, "kb0_start": self.block * 3 % 4, "kb0_stop": 3}
        known |= {"nbatch_fa": 64, "$smid": 7 + self.block, "(long)KV_max": 4096, "*KV_max@1": "{192}"}
        return [str(known[name]) if name in known else None for name in names]


def test_stops_are_read_until_every_block_has_a_record():
    gpu = Gpu(
        ("fattn-mma-f16.cuh:1908", EARLY + LATE),
        ("fattn-mma-f16.cuh:1908", THEN),
        ("fattn-mma-f16.cuh:1988", CALLS),
        ("fattn-common.cuh:1266", ""),
    )
    found = list(read_gpu_blocks(gpu, ANCHORS, [3, 1, 1], sparse=False))
    shares = [record for record in found if record["at"] == "kbc"]
    assert [(record["blockIdx"], record["kbc"], record["kbc_stop"], record["sm"]) for record in shares] == [
        ([at, 0, 0], 3 * at, 3 * at + 3, 7 + at) for at in range(3)
    ]
    assert [record["blockIdx"] for record in found if record["at"] == "tile"] == [[0, 0, 0]]
    (mask,) = [record for record in found if record["at"] == "KV_max"]
    assert (mask["values"], mask["nbatch_fa"], mask["sparse"]) == ("{192}", 64, False)
    assert not gpu.stops


def test_a_kernel_that_ends_early_is_reported_with_its_place_or_signal():
    assert fault_of(list(read_gpu_blocks(Gpu(("CUDA_EXCEPTION_6", "")), ANCHORS, [3, 1, 1], sparse=False))) == (
        "the kernel ended: misaligned address CUDA_EXCEPTION_6 in ggml_cuda_memcpy_1 at common.cuh:822"
    )
    assert fault_of([ended(StopRecord("signal", detail="SIGILL"))]) == "the kernel ended: signal SIGILL"
    assert fault_of([{"at": "kbc"}]) == fault_of([]) == ""


@pytest.mark.parametrize(
    ("name", "sparse"),
    [
        ("streamk-fractional", False),
        ("sequences-n_seq=4-n_q=8-n_kv=256-mask=causal", False),
        ("sparse-hsk=576-hsv=512-n_head=16-V=view_of_K", True),
        ("gqa", False),
    ],
)
def test_tiles_derived_from_kbc_equal_the_h200s(name, sparse):
    """Of a recorded kernel: its blocks' shares and its scanned mask alone give every tile."""
    facts = H200[name]
    records = [
        facts["grid"] | {"at": "kbc", "blockIdx": block["blockIdx"], "kbc": block["kbc"], "kbc_stop": block["kbc_stop"]}
        for block in facts["blocks"]
    ]
    rows = facts["launch"]["nbatch_fa"]
    limits = {(tile["sequence"], tile["jt"]): tile["kb0_limit"] for block in facts["blocks"] for tile in block["tiles"]}
    scanned = None
    if None not in limits.values():
        values = ", ".join(str(limits[place] * rows - 5 * sparse) for place in sorted(limits))
        scanned = {"values": f"{{{values}}}", "nbatch_fa": rows, "sparse": sparse}
    ne = {tensor["name"]: tensor["ne"] for tensor in facts["tensors"]}
    choice = Choice(facts["choice"]["family"], facts["choice"]["kernel"], facts["choice"]["template"], {})
    blocks = Tiling(choice, facts["launch"]["blocks_num"], ne).followed(records, scanned)
    assert len(blocks) == len(facts["blocks"])
    for block, recorded in zip(blocks, facts["blocks"], strict=True):
        assert [vars(tile) | {"read": None} for tile in block.tiles] == [
            tile | {"read": None} for tile in recorded["tiles"]
        ]
        assert not any(tile.read for tile in block.tiles)


def test_a_record_without_the_variables_of_the_kernel_says_which_and_gives_no_grid():
    """A source may rename them."""
    sizes = {"Q": (64, 7, 14, 1), "K": (64, 256, 2, 1)}
    tiling = Tiling(Choice("mma_f16", "flash_attn_ext_f16", {"ncols2": 8}, {}), (8, 1, 1), sizes)
    named = {"sequence": 0, "jt": 0, "z_KV": 0, "zt_gqa": 0, "needs_fixup": 0, "is_fixup": 0}
    tile = {"at": "tile", "blockIdx": [0, 0, 0], **named}
    assert tiling.lacks(tile) == {"kb0_start", "kb0_stop"} and tiling.grid([tile]) is None
    assert not tiling.lacks(tile | {"kb0_start": 0, "kb0_stop": 4})
    assert tiling.lacks({"at": "kbc", "kbc": 0}) == {"kbc_stop"} and tiling.grid([{"at": "kbc", "kbc": 0}]) is None
    vec = Tiling(Choice("vec", "flash_attn_ext_vec", {}, {}), (8, 1, 1), sizes)
    assert vec.lacks({"at": "vec", "sequence": 0}) == {"head", "nthreads", "ne11", "k_VKQ_max"}
