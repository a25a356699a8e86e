"""Copies of vectors, which the checker sees as one access."""

import pytest

from fattn_probe.build.rewrite import rewrite


def device(body):
    return rewrite(f"static __device__ void f() {{ {body} }}", "file.cu", frozenset()).text


def test_both_sides_of_a_vector_s_copy_are_marked():
    text = device("((int4 *) dst)[i + 1] = ((const int4 *) src)[i];")
    assert "SIMT_WHOLE(((int4 *) dst)[i + 1]) = SIMT_WHOLE(((const int4 *) src)[i]);" in text


@pytest.mark.parametrize(
    "statement",
    [
        "((int *) dst)[i] = ((const int *) src)[i];",  # no vector
        "((int4 *) dst)[i] = zero;",
        "dst[i] = ((const int4 *) src)[i];",
        "((int4 *) dst)[i] = ((const int4 *) src)[i].x;",
        "((float4 *) dst)[i] += ((const float4 *) src)[i];",
    ],
)
def test_other_statements_stay(statement):
    assert "SIMT_WHOLE" not in device(statement)
