"""The tables of the special functions, as the simulator reads them."""

import gzip
from importlib.resources import files

import numpy as np

from fattn_probe.machine.run.simulator import FRACTIONS, ex2_bounds, pack_corrections


def test_corrections_are_packed_in_two_bits_the_first_lowest():
    corrections = np.array([-1, 0, 1, 0, 1, 1, -1, 0], np.int8)
    assert pack_corrections(corrections) == bytes([0b01_10_01_00, 0b01_00_10_10])


def test_packed_corrections_can_be_read_back():
    corrections = np.random.default_rng(1).integers(-1, 2, 4096).astype(np.int8)
    packed = np.frombuffer(pack_corrections(corrections), np.uint8)
    fields = packed[:, None] >> np.arange(0, 8, 2) & 3
    np.testing.assert_array_equal(fields.ravel().astype(np.int8) - 1, corrections)


def test_outside_of_the_margins_the_bounds_give_ex2_for_every_fraction():
    data = (files("fattn_probe") / "native/sim/data/ex2.gz").read_bytes()
    corrections = np.frombuffer(gzip.decompress(data), np.int8)
    power = np.exp2(np.arange(FRACTIONS) / FRACTIONS) * FRACTIONS
    ranges = (np.arange(FRACTIONS) + 4096) // 8192
    middle, margin = ex2_bounds(corrections).T.astype(np.float64)
    total = power + middle[ranges]
    certain = np.abs(total - np.rint(total)) > margin[ranges]
    assert 0.8 < certain.mean() < 1
    np.testing.assert_array_equal(np.floor(total[certain]), np.rint(power[certain]) + corrections[certain])
