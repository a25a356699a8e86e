"""The simulated H200 under gdb against the real one under cuda-gdb 13.0 (driver 580.159.04, 2026-11-20).

Differences are listed: with nvcc -G some kernels have more registers, so fewer blocks fit an SM and divide the work.
"""

import gzip
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.daily.inspect.coverage import check
from fattn_probe.daily.inspect.facts import Facts
from fattn_probe.daily.inspect.trace.tracer import TRACE_OP
from fattn_probe.llama.launch.tiles import limits_of, parallel_blocks_of, share_of
from fattn_probe.llama.source import ggml_types, kernel_parameters
from fattn_probe.machine.run.prepare import prepare
from maintain.agreement import read_recording
from tests.daily.inspect.shipped import CASES, every_shipped_case, inspector_of
from tests.made import H200

TESTS = Path(__file__).parents[2]
INSPECTED = json.loads(gzip.decompress((TESTS / "data/h200-inspect.json.gz").read_bytes()))
TRACE = json.loads(gzip.decompress((TESTS / "data/h200-trace.json.gz").read_bytes()))
OCCUPANCY = {  # (simulated with a release build's registers, real with a -G build's)
    "alibi": {"max_blocks_per_sm": (3, 2), "max_blocks": (396, 264), "parallel_blocks": (3, 2)},
    **{
        f"masked-tiles-n_q=1-mask={mask}": {
            "max_blocks_per_sm": (3, 2),
            "blocks_per_wave": (396, 264),
            "efficiency_percent_best": (16, 24),
        }
        for mask in ("masked_tiles", "blocks")
    },
    **{
        f"tile-hsk=40-n_q={n_q}": {
            "max_blocks_per_sm": (5, 3),
            "blocks_per_wave": (660, 396),
            "efficiency_percent_best": (3, 6),
        }
        for n_q in (1, 5)
    },
    "tile-hsk=72-n_q=1": {
        "max_blocks_per_sm": (5, 2),
        "blocks_per_wave": (660, 264),
        "efficiency_percent_best": (6, 15),
    },
    "tile-hsk=72-n_q=5": {
        "max_blocks_per_sm": (3, 2),
        "blocks_per_wave": (396, 264),
        "efficiency_percent_best": (10, 15),
    },
    "decode": {
        "max_blocks_per_sm": (3, 2),
        "blocks_per_wave": (396, 264),
        "parallel_blocks": (12, 8),
        "blocks_num": ([1, 12, 32], [1, 8, 32]),
    },
}
RECORDING = TESTS / "data/h200"
ERA_A = "pypi:xllamacpp==0.2.8"
RECUT = ("decode",)  # and so its blocks are others
GQA = CASES["gqa"]

pytestmark = [pytest.mark.build, pytest.mark.gdb, pytest.mark.network]


@pytest.fixture(scope="module")
def inspector(selected_cases):
    """An inspector whose build has the kernels of all selected cases, compiled in parallel."""
    made = inspector_of()
    prepare(made.session, [(case, [H200]) for case in selected_cases])
    return made


def facts_of(inspector, case, device="sim:h200"):
    result = inspector.inspect(case, make_inputs(case), parse_target(device, load_devices())).result
    assert isinstance(result, Facts), result
    assert result.missing == ()
    return result


def values(facts, *names):
    known = facts.flat()
    return tuple(known[name] for name in names)


@pytest.mark.night
def test_the_session_on_an_rtx_4070():
    """The hand-driven session that this tool replaces, value for value: RTX 4070, llama.cpp of December 2025."""
    facts = facts_of(inspector_of(ERA_A), GQA, "sim:rtx4070")
    assert values(facts, "dst.ne", "dst.nb") == ([64, 14, 7, 1], [4, 256, 3584, 25088])
    assert facts.op_params["op_params"][0] == 1040187392
    assert facts.op_params["op_params"][3] == 10
    assert values(facts, "Q.ne", "K.ne", "V.ne") == ([64, 7, 14, 1], [64, 256, 2, 1], [64, 256, 2, 1])
    assert values(facts, "mask.ne") == ([256, 7, 1, 1],)
    assert values(facts, "ntiles_x", "ntiles_total", "block_dim") == (1, 14, [32, 4, 1])
    assert values(facts, "max_blocks_per_sm", "nsm", "max_blocks") == (2, 46, 92)
    assert values(facts, "kernel") == ("flash_attn_ext_f16<64,64,8,1,false,false>",)
    assert values(facts, "iter_k", "nbatch_fa") == (2, 128)
    assert len(facts.blocks) == 92


def test_every_shipped_case_was_inspected_on_the_h200():
    assert set(INSPECTED) == set(CASES)


@pytest.fixture(scope="module")
def recorded(tree):
    return read_recording(RECORDING, ggml_types(tree.root), kernel_parameters(tree.root))[1]


@every_shipped_case()
def test_every_shipped_case(case, inspector, recorded):
    """Facts are the real H200's but for those listed, the blocks do all work once, by the arithmetic of tiles."""
    name = case.name
    facts = facts_of(inspector, case)
    mine, theirs = json.loads(json.dumps(asdict(facts))), INSPECTED[name]
    differing = {
        fact: (mine["launch"][fact], theirs["launch"].get(fact))
        for fact in mine["launch"]
        if mine["launch"][fact] != theirs["launch"].get(fact)
    }
    assert differing == OCCUPANCY.get(name, {})
    for part in ("tensors", "op_params", "choice", "missing", "fault"):
        assert mine[part] == theirs[part], part
    if name not in RECUT:
        for kernel in mine["kernels"]:
            del kernel["origin"]  # the recording is older than what says where registers are from
        assert mine["kernels"] == theirs["kernels"]
        assert mine["grid"] == theirs["grid"]
        assert list(map(comparable, mine["blocks"])) == list(map(comparable, theirs["blocks"]))
    there = [(launch.spelling, launch.grid, launch.block, launch.shared) for launch in recorded[case.name].launches]
    assert [(launch.kernel, launch.grid, launch.block, launch.shared) for launch in facts.kernels] == there
    coverage = check(facts)
    assert coverage.passes, coverage.findings
    limits, turns = limits_of(facts.blocks) or None, parallel_blocks_of(facts.blocks)
    for block in facts.blocks:
        assert block.tiles == share_of(block, facts.grid, turns, limits)
    (attention,) = [launch for launch in facts.kernels if launch.kernel == facts.choice.kernel]
    assert len(facts.blocks) == attention.grid[0] * attention.grid[1] * attention.grid[2]
    assert facts.launch["blocks_num"] == list(attention.grid)
    assert facts.launch["block_dim"] == list(attention.block)
    assert facts.launch["nbytes_shared"] == attention.shared


def comparable(block):
    """Without the fields that only a real GPU has (`sm`) or that depend on how a fact was read (`read`)."""
    tiles = [{name: value for name, value in tile.items() if name != "read"} for tile in block["tiles"]]
    return {name: value for name, value in block.items() if name != "sm"} | {"tiles": tiles}


def test_every_register_of_a_traced_warp_is_the_h200_s(inspector):
    """KQ, P, KQ_max, KQ_rowsum, the rescale factor and VKQ of all lanes, in every bit that a debugger prints."""
    plan = {"block": [1, 0, 0], "linear": 1, "warp": 0, "tiles": 1, "kb0": None, "until_not_finite": False}
    with inspector.place(GQA, make_inputs(GQA)) as folder:
        found = inspector.procedure(TRACE_OP, plan, folder, H200)
    mine, theirs = readings(found), readings(TRACE)  # the recording is older than what is read after the last step
    assert {key: mine[key] for key in theirs} == theirs
    assert len(theirs) == 4 * 32


def readings(document):
    return {(item["anchor"], item["kb0"], item["lane"]): numbers(item["values"]) for item in document["readings"]}


def numbers(values):
    return {name: [float(value) for value in values[name]] for name in values}
