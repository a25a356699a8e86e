"""Rooflines and occupancy, by numbers that can be checked by hand."""

import pytest

from fattn_probe.base.console import text_of
from fattn_probe.cases.device import load_devices
from fattn_probe.lab.profile.counts import Counts, Profile, matched, quotient, ratio
from fattn_probe.lab.profile.roofline import Point, Roof, occupancy, peaks, roof_of
from fattn_probe.lab.profile.show import RooflinePicture
from fattn_probe.llama.launch.record import LaunchRecord

DEVICES = load_devices()
ROOF = Roof(flops=1000.0, bandwidth=10.0)
# TFLOP/s of tensor cores (f16, not sparse) in NVIDIA's data sheets, whose boost clocks may differ from the catalogue's.
DATA_SHEETS = {"v100": 125, "a100": 312, "t4": 65, "rtx4090": 165, "l40s": 362, "h100": 989, "rtx5090": 210}


def launch(name="kernel", **fields):
    return LaunchRecord(0, name, (), (8, 1, 1), (32, 4, 1), **{"shared": 0, **fields})


def test_the_ridge_divides_memory_bound_from_arithmetic_bound_and_a_point_needs_the_longer_of_both_times():
    assert ROOF.ridge == 100
    assert (ROOF.bound(99), ROOF.bound(100)) == ("memory", "arithmetic")
    assert (ROOF.attainable(50), ROOF.attainable(200)) == (500, 1000)
    assert Point("k", flops=2000, bytes=10).least_seconds(ROOF) == 2.0
    assert Point("k", flops=2000, bytes=100).least_seconds(ROOF) == 10.0
    assert Point("k", 2000, 100).achieved is None
    assert Point("k", 2000, 100, seconds=4).achieved == 500


@pytest.mark.parametrize(("name", "teraflops"), DATA_SHEETS.items())
def test_peaks_are_those_of_the_data_sheets(name, teraflops):
    roof = roof_of(DEVICES[name], tensor=True)
    assert roof is not None
    assert roof.flops / 1e12 == pytest.approx(teraflops, rel=0.09)


def test_peaks_are_known_of_devices_of_the_catalogue_only():
    assert set(peaks()) <= set(DEVICES)


def test_a_gpu_without_tensor_cores_has_the_roof_of_float32():
    gtx1060 = DEVICES["gtx1060"]
    assert roof_of(gtx1060, tensor=True) == roof_of(gtx1060, tensor=False)
    assert roof_of(gtx1060, tensor=False).flops == pytest.approx(4.4e12, rel=0.02)


def test_a_picture_has_the_roof_and_the_kernel():
    picture = text_of(RooflinePicture(ROOF, Point("k", 2000, 100, seconds=40)), 52).splitlines()
    assert sum(line.count("o") for line in picture[:-1]) == 1
    assert sum(line.count("x") for line in picture[:-1]) == 1
    rows = {mark: next(number for number, line in enumerate(picture) if mark in line) for mark in "ox"}
    assert rows["o"] < rows["x"]
    assert {len(line) <= 52 for line in picture} == {True}


REGISTERS = {  # of a thread: blocks of 128 threads on an SM with 64 K registers, by NVIDIA's calculator
    32: 16,
    64: 8,
    128: 4,
    168: 3,
    255: 2,
}


@pytest.mark.parametrize(("registers", "blocks"), REGISTERS.items())
def test_registers_limit_blocks(registers, blocks):
    found = occupancy(launch(regs=registers), DEVICES["h200"])
    assert found.blocks == found.limits["registers"] == blocks
    assert "registers" in found.limited_by
    assert found.share == blocks * 4 / 64


def test_shared_memory_warps_or_blocks_limit_the_occupancy():
    found = occupancy(launch(regs=32, shared=100 << 10), DEVICES["h200"])
    assert (found.blocks, found.limited_by) == (2, ("shared memory",))
    found = occupancy(launch(), DEVICES["t4"])
    assert (found.blocks, found.limited_by) == (8, ("warps",))
    small = LaunchRecord(0, "k", (), (1, 1, 1), (32, 1, 1), 0)
    assert occupancy(small, DEVICES["t4"]).limited_by == ("blocks",)


def test_ratios_of_what_is_unknown_are_unknown():
    assert (ratio(1, 2), ratio(0, 0), ratio(1, 0), ratio(None, 1), ratio(1, None)) == (0.5, 1.0, None, None, None)
    assert (ratio(None, None), quotient(0, 0)) == (None, None)
    for requests, sectors in ((2, 4), (0, None)):
        counts = Counts(launch(), {"load_sectors": 8 if requests else 0, "load_requests": requests})
        assert counts.sectors_of_a_load == sectors


def test_launches_of_two_targets_are_matched_by_kernel_and_place():
    a, b, c = (Counts(launch(name), {}) for name in ("a", "b", "a"))
    only_b = Counts(launch("b"), {})
    assert matched([Profile("x", (a, b, c)), Profile("y", (only_b,))]) == [(a, None), (b, only_b), (c, None)]
