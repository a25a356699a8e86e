"""What the models take from a source."""

import numpy as np
import pytest

from fattn_probe.llama.launch.constants import SHIPPED, constants_of, max_offset, vec_adds_in_f16
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve


@pytest.mark.network
def test_the_shipped_constants_are_those_of_the_default_source():
    assert constants_of(resolve(DEFAULT_SOURCE)) == SHIPPED


@pytest.mark.network
def test_the_first_era_shifts_the_maximum_less():
    assert constants_of(resolve("pypi:xllamacpp==0.2.8")).max_offset == np.float32(0.6931)


@pytest.mark.network
def test_the_vec_kernel_added_in_f16_until_the_end_of_2025():
    older, newer = resolve("pypi:pywhispercpp==1.4.1"), resolve("pypi:xllamacpp==0.2.8")
    assert vec_adds_in_f16(older, 90) and not vec_adds_in_f16(older, 61)
    assert not vec_adds_in_f16(newer, 90) and not vec_adds_in_f16(resolve(DEFAULT_SOURCE), 90)


@pytest.mark.network
def test_on_cdna_the_mma_kernel_added_in_f16_until_september_2026():
    releases = ("0.2.14", "2026.8.10566", "2026.9.11063")
    assert [constants_of(resolve(f"pypi:xllamacpp=={one}")).cdna_in_f32 for one in releases] == [False, False, True]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("#define FATTN_KQ_MAX_OFFSET (3.0f*0.6931f)", 3 * 0.6931),
        ("#define FATTN_KQ_MAX_OFFSET 0.6931f", 0.6931),
        ("#define SOFTMAX_FTZ_THRESHOLD -20.0f", 0.0),
    ],
)
def test_the_offset_of_the_maximum_is_in_the_source(line, value):
    assert max_offset(f"// comment\n{line}\nint x;\n") == value
