"""What the checker is told: copies of vectors as one access, the memory pool, and the variables of device code."""

import re

import pytest

from fattn_probe.llama.build.rewrite import Style, rewrite


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
def test_other_statements_are_no_copies(statement):
    assert "SIMT_WHOLE" not in device(statement)


POOL = """struct ggml_cuda_pool_leg : public ggml_cuda_pool {
    void clear_pool() { CUDA_CHECK(cudaFree(b.ptr)); }
    void * alloc(size_t size, size_t * actual_size) override {
        if (b.size >= size) {
            return b.ptr ? 0 : ptr;
        }
        return ptr;
    }
    void free(void * buffer, size_t size) override {
        b.ptr = buffer;
    }
};
"""


def test_the_pool_says_what_it_has_back_and_what_it_hands_out():
    made = rewrite(POOL, "ggml-cuda.cu", frozenset()).text
    assert made.splitlines()[2].endswith("override { void *simt_hand_out(void *);")
    assert made.splitlines()[6].strip() == "return simt_hand_out(ptr);"
    assert made.splitlines()[8].endswith("override { void simt_give_back(void *); simt_give_back(buffer);")
    assert made.count("\n") == POOL.count("\n")


def test_other_classes_with_such_members_are_left_alone():
    text = POOL.replace("ggml_cuda_pool_leg", "another_pool")
    assert rewrite(text, "ggml-cuda.cu", frozenset()).text == text


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
        ("extern __device__ float g[];", []),
        ("__device__ float f(float x);", []),
        ("__device__ float f(float x) { int y = 2; return x * y; }", []),
        ("__device__ const float table[2] = {1, 2};", []),
        ("template <typename T> __device__ T value;", []),
        ("struct S { __device__ int f(); static __device__ int x; };", []),
        ("__global__ void k() { __shared__ int x; static __device__ int y; }", []),
        ("__device__ float (*pointer)(float) = f;", []),
        ("__device__ S::S() : x(1), y{2} {}", []),
    ],
)
def test_variables_outside_of_functions_are_guarded_and_other_declarations_stay(text, names):
    assert guarded(text) == names
