"""`--values`: parts of tensors."""

import numpy as np
import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.daily.inspect.tensors import parse_slice, part

VALUES = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)  # ne = {5, 4, 3, 2}


def test_indices_are_in_the_order_of_ne():
    assert part(VALUES, parse_slice("K[4,0,2,1]")) == VALUES[1, 2, 0, 4]
    assert part(VALUES, parse_slice("K[-1]")).shape == (2, 3, 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("K[5]", r"K has ne\[0\] = 5: there is no index 5"),
        ("K[0,4]", r"K has ne\[1\] = 4: there is no index 4"),
        ("K[:,:,-4]", r"K has ne\[2\] = 3: there is no index -4"),
        ("K[0,0,0,0,0]", "K has 4 dimensions: too many indices"),
    ],
)
def test_an_index_that_is_not_there_is_named_with_its_ne(text, said):
    """The message had NumPy's axis, which counts from the other end."""
    with pytest.raises(InputError, match=said):
        part(VALUES, parse_slice(text))
