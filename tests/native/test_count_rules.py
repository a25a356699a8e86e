"""Sectors, wavefronts and bank conflicts of one instruction, by the simulator's rules."""

import shutil
import subprocess
from pathlib import Path

import pytest

from fattn_probe.llama.build.stamp import NATIVE

pytestmark = pytest.mark.build
OFF = -1


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    path = tmp_path_factory.mktemp("rules") / "rules"
    sources = [Path(__file__).with_name("count_rules.cpp"), NATIVE / "sim/count_rules.cpp"]
    command = [shutil.which("g++"), "-std=gnu++17", "-O1", "-DSIMT_COUNT", f"-I{NATIVE / 'sim'}", *sources, "-o", path]
    subprocess.run(command, check=True)
    return path


def found(rules, kind, size, addresses, *words):
    """(sectors, wavefronts, conflicts); with the word `copy`, before them the number of instructions."""
    line = f"{kind} {size} {' '.join(map(str, addresses))}\n"
    done = subprocess.run([rules, *words], input=line, capture_output=True, text=True, check=True)
    return tuple(map(int, done.stdout.split()))


def strided(step):
    return [lane * step for lane in range(32)]


CASES = {
    "words side by side": ("load", 4, strided(4), (4, 1, 0)),
    "one word": ("load", 4, strided(0), (1, 1, 0)),
    "two words of a bank": ("load", 4, [128 * (lane % 2) for lane in range(32)], (2, 2, 1)),
    "a column of 32 words": ("load", 4, strided(128), (32, 32, 31)),
    "a padded column": ("load", 4, strided(132), (32, 1, 0)),
    "every second word": ("store", 4, strided(8), (8, 2, 1)),
    "half words side by side": ("store", 2, strided(2), (2, 1, 0)),
    "8 bytes side by side": ("load", 8, strided(8), (8, 2, 0)),
    "8 bytes with gaps": ("load", 8, strided(16), (16, 4, 2)),
    "16 bytes side by side": ("store", 16, strided(16), (16, 4, 0)),
    "16 bytes with gaps": ("store", 16, strided(32), (32, 8, 4)),
    "8 bytes, the same for neighbours": ("load", 8, [lane // 2 * 8 for lane in range(32)], (4, 1, 0)),
    "8 bytes, the same for lanes 2 apart": (
        "load",
        8,
        [(lane // 4 * 2 + lane % 2) * 8 for lane in range(32)],
        (4, 1, 0),
    ),
    "a store is not packed": ("store", 8, [lane // 2 * 8 for lane in range(32)], (4, 2, 0)),
    "16 bytes, the same for all": ("load", 16, strided(0), (1, 2, 0)),
    "one lane": ("load", 16, [64] + [OFF] * 31, (1, 1, 0)),
    "eight lanes of 16 bytes": ("store", 16, [lane * 16 for lane in range(8)] + [OFF] * 24, (4, 1, 0)),
    "across a sector's end": ("load", 4, [30] + [OFF] * 31, (2, 1, 0)),
    "atomics on one word take turns": ("atomic", 4, strided(0), (1, 32, 31)),
    "atomics side by side": ("atomic", 4, strided(4), (4, 1, 0)),
}


@pytest.mark.parametrize(("kind", "size", "addresses", "expected"), CASES.values(), ids=CASES)
def test_an_instruction(rules, kind, size, addresses, expected):
    assert found(rules, kind, size, addresses) == expected


# (instructions, sectors, wavefronts, conflicts)
COPIES = {
    "16 bytes": ("load", 16, strided(16), (1, 16, 4, 0)),
    "3 floats": ("load", 12, strided(12), (3, 3 * 12, 3, 0)),
    "5 ints": ("store", 20, strided(20), (5, 5 * 20, 5, 0)),
    "3 doubles": ("load", 24, strided(24), (3, 3 * 24, 3 * 2, 0)),
    "3 float4": ("store", 48, strided(48), (3, 3 * 32, 3 * 4, 0)),
    # Of eight lanes that are served at once, four start in different banks: 40 words from lane to lane.
    "10 float4": ("store", 160, strided(160), (10, 10 * 32, 10 * 8, 10 * 4)),
    "2 floats, every second pair aligned to 8 bytes": ("load", 8, strided(12), (2, 2 * 12, 2, 0)),
    "3 halves of one lane": ("load", 6, [64] + [OFF] * 31, (3, 3, 3, 0)),
    "3 bytes of one lane": ("load", 3, [64] + [OFF] * 31, (3, 3, 3, 0)),
}


@pytest.mark.parametrize(("kind", "size", "addresses", "expected"), COPIES.values(), ids=COPIES)
def test_a_copy_of_a_structure_is_several_instructions(rules, kind, size, addresses, expected):
    assert found(rules, kind, size, addresses, "copy") == expected
