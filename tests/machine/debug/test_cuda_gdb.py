"""cuda-gdb on a real H200 (13.0, driver 580.159.04, 2026-11-20), as it was recorded: every command and every answer."""

import gzip
import json
import sys
from pathlib import Path

import pytest

from fattn_probe.daily.inspect import assemble
from fattn_probe.daily.inspect.anchors import locate
from fattn_probe.daily.inspect.dispatch.decide import decisions, plan_of, read_dispatch, visits_of
from fattn_probe.daily.inspect.procedures.op import read_op
from fattn_probe.llama.source import ggml_types, kernel_parameters
from fattn_probe.llama.source.features import CUDA
from fattn_probe.machine.debug.procedure import OverMI
from fattn_probe.machine.debug.session import DebugSession

TESTS = Path(__file__).parents[2]
TRANSCRIPT = TESTS / "transcripts/cuda-gdb-13-gqa-mi.txt.gz"
H200 = json.loads(gzip.decompress((TESTS / "data/h200-inspect.json.gz").read_bytes()))["gqa"]

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def dispatch(tree):
    return read_dispatch(tree.root)


@pytest.fixture(scope="module")
def found(tree, dispatch, tmp_path_factory):
    """The result of `read_op` over MI with cuda-gdb's recorded answers; any other question fails."""
    transcript = tmp_path_factory.mktemp("cuda-gdb") / "transcript.txt"
    transcript.write_bytes(gzip.decompress(TRANSCRIPT.read_bytes()))
    anchors = {name: list(places) for name, places in locate(tree.root / CUDA).locations.items()}
    plan = {"anchors": anchors, "dispatch": plan_of(dispatch), "simulated": False, "blocks": True}
    debugger = [sys.executable, str(TESTS / "machine/debug/replay.py"), str(transcript)]
    words = ["case.gguf", "out.gguf", "--backend", "CUDA0"]
    with DebugSession(debugger, Path("/export/bin/fattn-runner"), words) as session:
        return read_op(OverMI(session), plan)


def test_the_kernel_and_why(found, tree, dispatch):
    asked = decisions(dispatch.conditions, visits_of(found["visits"]))
    choice = assemble.choice_of(found, asked, ggml_types(tree.root), kernel_parameters(tree.root))
    assert choice.kernel == H200["choice"]["kernel"] == "flash_attn_ext_f16<64,64,8,8,false,false,false>"
    assert choice.config == H200["choice"]["config"]
    assert [item.condition for item in choice.decisions] == [item["condition"] for item in H200["choice"]["decisions"]]
    assert [item.held for item in choice.decisions] == [item["held"] for item in H200["choice"]["decisions"]]


def test_the_host_s_facts(found):
    launch = assemble.variables_of(found["launch"]) | assemble.variables_of(found["scoped"])
    assert {name: H200["launch"][name] for name in launch} == launch
    assert (launch["ntiles_dst"], launch["ntiles_KV"], launch["blocks_num"]) == (2, 4, [8, 1, 1])
    assert [tensor.ne for tensor in assemble.tensors_of(found["tensors"])] == [
        tuple(tensor["ne"]) for tensor in H200["tensors"]
    ]


def test_every_block_says_its_share_and_some_their_tile(found):
    shares = {record["blockIdx"][0]: record for record in found["blocks"] if record["at"] == "kbc"}
    assert [(shares[at]["kbc"], shares[at]["kbc_stop"]) for at in range(8)] == [(at, at + 1) for at in range(8)]
    assert len({shares[at]["sm"] for at in range(8)}) == 8
    tiles = [record for record in found["blocks"] if record["at"] == "tile"]
    assert tiles
    for tile in tiles:
        assert (tile["z_KV"], tile["kb0_start"]) == divmod(tile["kbc"], 4)
        assert tile["is_fixup"] == (tile["kb0_stop"] != 4)
