"""Packages that are missing, and arrays that do not fit."""

import numpy as np
import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.lab.kernels.extras import Arrays, load, sizes_of

HALF = np.zeros((1, 4, 7, 64), np.float16)


def test_a_missing_package_is_named_with_its_command():
    with pytest.raises(InputError, match=r"^no_such_package is not installed: `pip install 'fattn-probe\[some\]'`$"):
        load("no_such_package.part", "some")


def test_a_missing_module_of_our_own_is_a_bug():
    with pytest.raises(ModuleNotFoundError):
        load("fattn_probe.lab.kernels.no_such_module", "some")


def test_the_sizes_of_arrays():
    sizes = sizes_of(Arrays(HALF, np.zeros((1, 2, 9, 64), np.float16), np.zeros((1, 2, 9, 32), np.float16), 1.0))
    assert (sizes.n_head, sizes.n_head_kv, sizes.n_q, sizes.n_kv, sizes.hsk, sizes.hsv) == (4, 2, 7, 9, 64, 32)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((HALF, HALF.astype(np.float32), HALF, None), "k is float32, f16 is needed"),
        ((HALF, HALF[:, :3], HALF[:, :3], None), "4 heads are not a multiple of 3 K/V heads"),
        ((HALF, HALF, HALF, np.zeros((7, 8), np.float16)), r"the mask is \(7, 8\), \(n_q, n_kv\) = \(7, 7\) is needed"),
    ],
)
def test_arrays_that_do_not_fit(arrays, message):
    q, k, v, mask = arrays
    with pytest.raises(InputError, match=message):
        sizes_of(Arrays(q, k, v, 1.0, mask=mask))
