"""Memory that repeats, as an array."""

import gc
import resource
from pathlib import Path

import numpy as np
import pytest

from fattn_probe.cases.op import Root
from fattn_probe.cases.op.case_file import repeated, whole

PAGE = 4096


@pytest.mark.parametrize("size", [1, PAGE - 1, 3 * PAGE, 3 * PAGE + 5, 7 * PAGE])
def test_the_part_comes_again_and_again(size):
    part = np.random.default_rng(1).integers(0, 256, 3 * PAGE).astype(np.uint8)
    found = repeated(part, size)
    assert found.shape == (size,)
    np.testing.assert_array_equal(found, np.resize(part, size))


def test_it_is_read_only():
    with pytest.raises(ValueError, match="read-only"):
        repeated(np.zeros(PAGE, np.uint8), PAGE)[0] = 1


def test_a_hundred_gigabytes_cost_one_part():
    part = np.arange(16 << 20, dtype=np.uint32).view(np.uint8)[: 16 << 20]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = repeated(part, 100 << 30)
    assert found[99 << 30 : (99 << 30) + 8].tolist() == part[:8].tolist()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 << 10  # KiB


def test_views_keep_the_memory_and_the_last_one_returns_it():
    found = repeated(np.full(PAGE, 7, np.uint8), 100 * PAGE)[5 * PAGE :].view(np.float16)
    gc.collect()
    assert found[0].view(np.uint16) == 0x0707
    mappings = len(Path("/proc/self/maps").read_text().splitlines())
    del found
    assert len(Path("/proc/self/maps").read_text().splitlines()) < mappings


def test_a_root_without_a_period_is_what_is_stored():
    stored = np.arange(64, dtype=np.uint8)
    assert whole(Root("K", "f32", (16, 1, 1, 1)), stored) is stored
