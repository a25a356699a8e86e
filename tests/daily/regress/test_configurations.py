"""The suite `nightly` launches every row of the kernels' configurations, on every NVIDIA architecture that it names."""

import pytest

from fattn_probe.cases.device import load_devices
from fattn_probe.cases.shipped import find
from fattn_probe.daily.regress.entries import own_cases
from fattn_probe.daily.regress.suite import load_suite
from fattn_probe.llama.launch.architecture import arch_number, fast_f16, generation_of
from fattn_probe.llama.launch.constants import constants_of
from fattn_probe.llama.launch.families import MMA_F16, TILE
from fattn_probe.machine.run.base import Base
from fattn_probe.machine.run.session import RunOptions
from tests import made

PASCAL, VOLTA, TURING = 61, 70, 75
ONLY_TILE = (40, 72)
"""Head sizes that have no mma kernel."""
GROUPED = {192: 8, 320: 16}
"""Head sizes whose tile kernel has at least so many columns: heads of Q that share one of K."""


def suite_parts(name="nightly"):
    path = find("suite", name)
    suite = load_suite(path)
    parts = [part for part in suite.parts if part.flavour == "release" and not (part.quants or part.sanitize)]
    shipped = load_devices()
    pairs = [(part, word) for part in parts for word in part.on if word.removeprefix("sim:") in shipped]
    return [(part, made.target(word)) for part, word in pairs], path.parent


ARCHITECTURES, OF_AMD = (
    sorted({arch_number(target.device.arch) for _, target in suite_parts(suite)[0]})
    for suite in ("nightly", "nightly-amd")
)


def mma_rows(constants, arch):
    """The rows that the dispatch can reach: an architecture's own, and Ampere's for other sizes."""
    if arch < VOLTA:
        return set()
    rows = constants.mma["ampere"].keys() | constants.mma[generation_of(arch).configuration].keys()
    if arch == VOLTA:  # below 32 columns its device code is not compiled (docs/findings.md, volta-columns)
        return {sizes for sizes in rows if sizes[2] >= 32}
    return {sizes for sizes in rows if sizes[2] <= 32} if arch == TURING else rows  # which has no tiles of 64 columns


def tile_rows(constants, arch):
    """(DKQ, ncols) that the dispatch can reach."""
    rows = set(constants.tile["fp16" if fast_f16(arch) else "fp32"])
    if arch > VOLTA:
        return {(DKQ, ncols) for DKQ, ncols in rows if DKQ in ONLY_TILE}
    rows = {(DKQ, ncols) for DKQ, ncols in rows if ncols >= GROUPED.get(DKQ, 0)}
    if arch == VOLTA:  # with more than 16 columns, or 32 heads on one of K, it has mma kernels
        rows = {(DKQ, ncols) for DKQ, ncols in rows if DKQ in ONLY_TILE or (ncols <= 16 and DKQ != 320)}
    return rows


def launched(tree, arch):
    """The rows that the suite launches on an architecture, by dry runs."""
    parts, folder = suite_parts()
    base = Base(RunOptions(tree), "")
    mma, tile = set(), set()
    for part, target in parts:
        if arch_number(target.device.arch) != arch:
            continue
        for launch in (one for each in base.launches(own_cases(part, folder), target).values() for one in each):
            family = next((family for family in (MMA_F16, TILE) if family.kernel == launch.kernel), None)
            if family is None:
                continue
            named = family.arguments(launch.values)
            ncols = int(named["ncols1"]) * int(named["ncols2"])
            if family is TILE:
                tile.add((int(named["DKQ"]), ncols))
            else:
                mma.add((int(named["DKQ"]), int(named["DV"]), ncols))
    return mma, tile


def test_the_suite_names_an_architecture_of_each_table():
    configurations = {generation_of(arch).configuration for arch in (*ARCHITECTURES, *OF_AMD) if arch >= VOLTA}
    assert configurations == {"ampere", "turing", "volta", "rdna", "cdna"}
    assert {fast_f16(arch) for arch in ARCHITECTURES} == {True, False}
    assert {61, 70, 75, 80, 86, 89, 90, 100, 120, 121} == set(ARCHITECTURES)
    assert {arch_number(device.arch) for device in load_devices().values() if device.gfx} <= {*OF_AMD}


@pytest.mark.build
@pytest.mark.network
@pytest.mark.night
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_row_has_a_case(tree, arch):
    constants = constants_of(tree)
    mma, tile = launched(tree, arch)
    assert not sorted(mma_rows(constants, arch) - mma)
    if arch in (80, 100, 120, 121):  # the entry for these has the mma kernels only
        return
    assert not sorted(tile_rows(constants, arch) - tile)
