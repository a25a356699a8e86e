"""Copies of whole structures: as many loads and stores as nvcc 13.0 makes of them for sm_90, by its machine code."""

import json
from pathlib import Path

import pytest

from tests.as_user import fattn_probe

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


def named(launch):
    argument = ", ".join(launch["template_args"].values())
    return f"{launch['kernel']}<{argument}>" if argument else launch["kernel"]


def counts_on(target):
    done = fattn_probe("profile", STRUCTURES, "--on", target, "--timeout", "60", "--json")
    (profile,) = json.loads(done.stdout)["profiles"]
    wanted = dict(expected())
    return {
        named(launch): {key: launch["counts"][key] for key in wanted[named(launch)]} for launch in profile["launches"]
    }


@pytest.mark.build
def test_a_copy_of_a_structure_is_counted_as_nvcc_compiles_it():
    assert counts_on("sim:h200") == dict(expected())


@pytest.mark.gpu
def test_a_gpu_counts_the_same():
    assert counts_on("gpu") == dict(expected())
