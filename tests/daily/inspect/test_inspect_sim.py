"""Inspection of real kernels on simulated GPUs, under real gdb."""

from pathlib import Path

import pytest

from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.daily.inspect.coverage import check
from fattn_probe.daily.inspect.facts import Facts
from fattn_probe.llama.launch.tiles import limits_of, parallel_blocks_of, share_of
from fattn_probe.llama.source import ggml_types, template_parameters
from fattn_probe.machine.run.prepare import prepare
from maintain.agreement import read_recording
from tests.daily.inspect.shipped import CASES, every_shipped_case, inspector_of

RECORDING = Path(__file__).parents[2] / "data/h200"
ERA_A = "pypi:xllamacpp==0.2.8"

pytestmark = [pytest.mark.build, pytest.mark.gdb, pytest.mark.network]


@pytest.fixture(scope="module")
def inspector(selected_cases):
    """An inspector whose build has the kernels of all selected cases, compiled in parallel."""
    made = inspector_of()
    prepare(made.session, [(case, [parse_target("sim:h200", load_devices())]) for case in selected_cases])
    return made


def facts_of(inspector, case, device="sim:h200"):
    result = inspector.inspect(case, make_inputs(case), parse_target(device, load_devices())).result
    assert isinstance(result, Facts), result
    assert result.missing == ()
    return result


GQA = CASES["gqa"]


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


def test_a_debugger_without_python_finds_the_same(inspector):
    over_mi = facts_of(inspector_of(python=False), GQA)
    assert over_mi == facts_of(inspector, GQA)


@pytest.fixture(scope="module")
def recorded(tree):
    return read_recording(RECORDING, ggml_types(tree), template_parameters(tree))[1]


@every_shipped_case()
def test_every_shipped_case(case, inspector, recorded):
    """The launches are the real H200's, the blocks do all work once, and the tiles are those of the arithmetic."""
    facts = facts_of(inspector, case)
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
