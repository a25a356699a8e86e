"""Which loads and stores of shared memory nvcc joins, by its machine code, and by the simulator's rules."""

import functools
import json
import os
import re
from collections import Counter
from pathlib import Path

import pytest

from fattn_probe.base.errors import BuildError
from fattn_probe.base.process import run
from fattn_probe.daily.doctor.facts import find_tool
from fattn_probe.llama.build.toolchain import find_toolchain
from tests.as_user import answer

JOINED = Path(__file__).with_name("joined.cu")
H100 = json.loads(JOINED.with_name("h100.json").read_text())["tests/lab/profile/joined.cu"]
"""ncu's counts on an H100, the same in two runs (2026-11-23, nvcc 13.0)."""
KEYS = ("shared_loads", "shared_stores", "load_wavefronts", "store_wavefronts", "conflicts")
MEASURED = [(launch["kernel"], [launch["counts"][key] for key in KEYS]) for launch in H100]
LENGTHS = (3, 4, 6, 16, 23)
"""Of the loops in joined.cu."""
TURNS = 12
"""Of the loop in `body`."""
# The instructions of nvcc 13.0 for sm_90, once each.
STRAIGHT = {
    "broadcast": {"LDS.128": 8, "STS": 1},
    "odd_rows": {"LDS": 32, "STS": 33},
    "stores": {"LDS": 4, "STS.128": 1},
    "store_between": {"LDS": 2, "STS": 2},
    "stores_of_pairs": {"LDS": 2, "STS.128": 1},
    "gaps": {"LDS.128": 1, "LDS": 2, "STS.64": 1, "STS": 1},
    "halves<5>": {"LDS.64": 1, "LDS.U16": 1, "STS.U16": 1},
    "halves<6>": {"LDS.64": 1, "LDS": 1, "STS.U16": 1},
    "halves<7>": {"LDS.64": 2, "STS.U16": 1},
    "side_by_side<float2>": {"LDS.64": 1, "STS": 1},
    "side_by_side<float4>": {"LDS.128": 1, "STS": 1},
}
# The loads of four turns together, or two, and of the turns that remain; ptxas repeats them.
LOOPS = {
    "loop": {"LDS.128", "LDS"},
    "loop_of_pairs": {"LDS.128", "LDS.64"},
    "body<4>": {"LDS.128", "LDS"},
    "body<16>": {"LDS.64", "LDS"},
    "body<32>": {"LDS"},
}
MANGLED = re.compile(r"_Z\d+([a-z_]*[a-z])(?:I(?:Li(\d+)E|\d([a-z]+\d))E)?E?[vP]")
INSTRUCTION = re.compile(r"\b((?:LDS|STS)(?:\.64|\.128|\.U16)?) ")


@pytest.fixture(scope="module")
def machine_code(tmp_path_factory):
    """The instructions for shared memory of each kernel in joined.cu, counted."""
    disassembler = find_tool("nvdisasm")
    try:
        nvcc = find_toolchain("cuda").nvcc
    except BuildError as error:
        skip_unless_required("nvcc", str(error))
    if disassembler is None:
        skip_unless_required("nvdisasm", "nvdisasm is not on this machine")
    cubin = tmp_path_factory.mktemp("joined") / "joined.cubin"
    run([nvcc, "-std=c++17", "-arch=sm_90", "-cubin", "-o", cubin, JOINED])
    return dict(map(counted, re.split(r"\n\.text\.", run([disassembler.path, cubin]).stdout)[1:]))


def skip_unless_required(program, reason):
    if program in os.environ.get("FATTN_PROBE_REQUIRE", "").split(","):
        pytest.fail(reason)
    pytest.skip(reason)


def counted(section):
    name, number, type = MANGLED.match(section).groups()
    argument = number or type
    return (f"{name}<{argument}>" if argument else name), Counter(INSTRUCTION.findall(section))


@functools.cache
def on(target):
    """The counts of each launch of joined.cu, with its kernel's name."""
    (profile,) = answer("profile", JOINED, "--on", target)["profiles"]
    return [(name_of(launch), launch["counts"]) for launch in profile["launches"]]


def name_of(launch):
    argument = ", ".join(launch["template_args"].values())
    return f"{launch['kernel']}<{argument}>" if argument else launch["kernel"]


@pytest.mark.build
@pytest.mark.parametrize("kernel", STRAIGHT)
def test_nvcc_joins_neighbours_of_a_block(machine_code, kernel):
    assert machine_code[kernel] == STRAIGHT[kernel]


@pytest.mark.build
@pytest.mark.parametrize("kernel", LOOPS)
def test_nvcc_joins_turns_of_a_loop(machine_code, kernel):
    assert {name for name in machine_code[kernel] if name.startswith("LDS")} == LOOPS[kernel]


@pytest.mark.build
def test_the_simulator_joins_what_nvcc_joins():
    found = on("sim:h200")
    straight = {name: (counts["shared_loads"], counts["shared_stores"]) for name, counts in found if name in STRAIGHT}
    assert straight == {
        name: tuple(sum(times for one, times in expected.items() if one.startswith(kind)) for kind in ("LDS", "STS"))
        for name, expected in STRAIGHT.items()
    }
    assert [counts["shared_loads"] for name, counts in found if name == "loop"] == [n // 4 + n % 4 for n in LENGTHS]
    pairs = [counts["shared_loads"] for name, counts in found if name == "loop_of_pairs"]
    assert pairs == [2 * (n // 4) + n % 4 for n in LENGTHS]
    bodies = {name: counts["shared_loads"] for name, counts in found if name.startswith("body")}
    assert bodies == {f"body<{n}>": TURNS * n + TURNS // turns for n, turns in ((4, 4), (16, 2), (32, 1))}


BOTH = [pytest.param("sim:h200", marks=pytest.mark.build), pytest.param("gpu", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("target", BOTH)
def test_the_counts_are_an_h100_s(target):
    assert [(name, [counts[key] for key in KEYS]) for name, counts in on(target)] == MEASURED


STRUCTURES = Path(__file__).with_name("structures.cu")
# Instructions of each access, and the sectors of one of them by a warp.
COPIES = {"float3": (3, 12), "Node": (5, 20), "Tile": (10, 32)}
# A lane's 16 bytes of a Tile lie 40 words behind the lane's before: of 8 lanes served at once, two use each bank.
WAVEFRONTS = {"float3": (1, 0), "Node": (1, 0), "Tile": (8, 4)}
PAIR = (2, 12)
"""The pair in a Tagged: 4 bytes at a time, since its type promises no more, wherever its address lies."""


def global_counts(instructions, sectors):
    each = {"loads": instructions, "stores": instructions}
    return {f"global_{name}": number for name, number in each.items()} | {
        "load_sectors": instructions * sectors,
        "store_sectors": instructions * sectors,
    }


def shared_counts(type):
    instructions, (wavefronts, conflicts) = COPIES[type][0], WAVEFRONTS[type]
    return {
        "shared_loads": instructions,
        "shared_stores": instructions,
        "load_wavefronts": instructions * wavefronts,
        "store_wavefronts": instructions * wavefronts,
        "conflicts": 2 * instructions * conflicts,
    }


def expected():
    yield "global_pair_copy", global_counts(*PAIR)
    for type, (instructions, sectors) in COPIES.items():
        yield f"global_copy<{type}>", global_counts(instructions, sectors)
        yield f"shared_copy<{type}>", global_counts(instructions, sectors) | shared_counts(type)


def counts_on(target):
    (profile,) = answer("profile", STRUCTURES, "--on", target, "--timeout", "60")["profiles"]
    wanted = dict(expected())
    return {
        name_of(launch): {key: launch["counts"][key] for key in wanted[name_of(launch)]}
        for launch in profile["launches"]
    }


@pytest.mark.parametrize("target", BOTH)
def test_a_copy_of_a_structure_is_counted_as_nvcc_compiles_it(target):
    assert counts_on(target) == dict(expected())
