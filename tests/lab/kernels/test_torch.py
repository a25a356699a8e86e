"""PyTorch's scaled_dot_product_attention."""

import numpy as np
import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Target
from fattn_probe.lab.kernels.contender import How
from fattn_probe.lab.kernels.torch_attention import attend, backends, visible
from tests.lab.kernels.attention_case import case, needs

CPU = Target("cpu")
CASES = {
    "square": case(1, 2, 2, 64, 64, 64, 64, causal=True),
    "causal": case(1, 4, 2, 33, 77, 64, 64, causal=True),
    "mask": case(2, 4, 1, 40, 90, 128, 128, masked=True, causal=True),
}


def test_causal_and_mask_are_one_mask():
    mask = np.array([[1, 2, 3], [4, 5, 6]], np.float16)
    assert visible(mask, 2, 3, causal=True).tolist() == [[1, 2, -np.inf], [4, 5, 6]]
    assert visible(None, 2, 1, causal=True).tolist() == [[-np.inf], [0]]
    assert visible(None, 2, 3, causal=False) is None


def test_a_backend_that_pytorch_does_not_know():
    problem = CASES["square"]
    with pytest.raises(InputError, match="no backend 'maths'; allowed: math, flash, efficient, cudnn"):
        attend("maths", problem.arrays, target=CPU, how=How())


@needs("torch", extra="torch")
@pytest.mark.parametrize("problem", CASES.values(), ids=CASES)
def test_every_backend_that_is_there_is_within_the_rounding_of_its_output(problem):
    names = backends()
    assert "math" in names
    exact, lse = problem.exact()
    sees = np.isfinite(lse)
    for name in names:
        o = attend(name, problem.arrays, target=CPU, how=How()).o
        assert o.dtype == np.float16
        step = np.abs(exact).max() * 2.0**-10
        assert 0 < np.abs(o - exact)[sees].max() < step


@needs("torch", extra="torch")
def test_a_backend_that_does_not_take_an_op_says_why():
    problem = case(1, 1, 1, 16, 16, 64, 32)
    with pytest.raises(InputError, match=r"torch's backend flash does not take this op on .*: .*dimension"):
        attend("flash", problem.arrays, target=CPU, how=How())
