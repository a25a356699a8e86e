"""Which declarations of device variables the checker is told of."""

import re

import pytest

from fattn_probe.build.rewrite import Style, rewrite


def guarded(text):
    made = rewrite(text, "a.cu", frozenset(), Style(whole=True)).text
    assert made.count("\n") == text.count("\n")
    return re.findall(r"SIMT_GUARD\w*\(.*?\)", made)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("__device__ float g[4];", ["SIMT_GUARD(, g)"]),
        ("static __device__ int a, b[2][3];", ["SIMT_GUARD(static, a)", "SIMT_GUARD(static, b)"]),
        ("__constant__ float c[2] = {1, 2}, d;", ["SIMT_GUARD_INITIALISED(, c)", "SIMT_GUARD(, d)"]),
        ("__device__ int n{f(3, 4)};", ["SIMT_GUARD_INITIALISED(, n)"]),
        ("__device__ __managed__ int total;", ["SIMT_GUARD(, total)"]),
        ("__device__ std::pair<int, float> pair[2];", ["SIMT_GUARD(, pair)"]),
        ("__constant__ struct { int x; } s;", ["SIMT_GUARD(, s)"]),
        ("__align__(16) __device__ char bytes[16];", ["SIMT_GUARD(, bytes)"]),
        ("__device__ __align__(16) char bytes[16];", ["SIMT_GUARD(, bytes)"]),
        ("namespace a::b { namespace { __device__ int x; } }", ["SIMT_GUARD(, x)"]),
        ('extern "C" { __device__ int x; }', ["SIMT_GUARD(, x)"]),
    ],
)
def test_variables_outside_of_functions(text, names):
    assert guarded(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "extern __device__ float g[];",
        "__device__ float f(float x);",
        "__device__ float f(float x) { int y = 2; return x * y; }",
        "__device__ const float table[2] = {1, 2};",
        "template <typename T> __device__ T value;",
        "struct S { __device__ int f(); static __device__ int x; };",
        "__global__ void k() { __shared__ int x; static __device__ int y; }",
        "__device__ float (*pointer)(float) = f;",
        "__device__ S::S() : x(1), y{2} {}",
    ],
)
def test_other_declarations_stay(text):
    assert guarded(text) == []
