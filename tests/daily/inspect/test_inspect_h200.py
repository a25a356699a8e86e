"""The simulated H200 under gdb against the real one under cuda-gdb 13.0 (driver 580.159.04, 2026-11-20).

What differs is listed: nvcc -G gives some kernels more registers than a release build has, so fewer blocks fit an SM,
and the launch divides the work by how many do.
"""

import gzip
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.daily.inspect.facts import Facts
from fattn_probe.daily.inspect.inspector import InspectOptions, Inspector
from fattn_probe.daily.inspect.trace.tracer import TRACE_OP
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.machine.run.simulator import Simulation
from tests.daily.inspect.shipped import CASES, every_shipped_case

TESTS = Path(__file__).parents[2]
H200 = json.loads(gzip.decompress((TESTS / "data/h200-inspect.json.gz").read_bytes()))
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
RECUT = ("decode",)  # and so its blocks are others

pytestmark = [pytest.mark.build, pytest.mark.gdb, pytest.mark.network]


@pytest.fixture(scope="module")
def inspector():
    run = RunOptions(resolve(DEFAULT_SOURCE), "debug", simulation=Simulation(threads=1))
    return Inspector(Session(run), InspectOptions())


def test_every_shipped_case_was_inspected_on_the_h200():
    assert set(H200) == set(CASES)


@every_shipped_case(in_ci=())
def test_facts_equal_but_for_listed_differences(case, inspector):
    name = case.name
    facts = inspector.inspect(case, make_inputs(case), parse_target("sim:h200", load_devices())).result
    assert isinstance(facts, Facts)
    mine, theirs = json.loads(json.dumps(asdict(facts))), H200[name]
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


def comparable(block):
    """Without the fields that only a real GPU has (`sm`) or that depend on how a fact was read (`read`)."""
    tiles = [{name: value for name, value in tile.items() if name != "read"} for tile in block["tiles"]]
    return {name: value for name, value in block.items() if name != "sm"} | {"tiles": tiles}


def test_every_register_of_a_traced_warp_is_the_h200_s(inspector):
    """KQ, P, KQ_max, KQ_rowsum, the rescale factor and VKQ of all lanes, in every bit that a debugger prints."""
    case = CASES["gqa"]
    plan = {"block": [1, 0, 0], "linear": 1, "warp": 0, "tiles": 1, "kb0": None, "until_not_finite": False}
    with inspector.place(case, make_inputs(case)) as folder:
        found = inspector.procedure(TRACE_OP, plan, folder, parse_target("sim:h200", load_devices()))
    mine, theirs = readings(found), readings(TRACE)  # the recording is older than what is read after the last step
    assert {key: mine[key] for key in theirs} == theirs
    assert len(theirs) == 4 * 32


def readings(document):
    return {(item["anchor"], item["kb0"], item["lane"]): numbers(item["values"]) for item in document["readings"]}


def numbers(values):
    return {name: [float(value) for value in values[name]] for name in values}
