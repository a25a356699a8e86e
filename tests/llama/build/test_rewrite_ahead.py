"""Loops that lanes may run ahead in, bool template parameters that become arguments, and what the checker is told."""

import functools
import re
import subprocess

import pytest

from fattn_probe.llama.build.rewrite import Style, rewrite
from tests.llama.build.rewriting import device, one_line

SHUFFLES = "for (int offset = width/2; offset > 0; offset >>= 1)"
LOOP = "for (int k = 0; k < n; k += 8) { tile A; load_ldmatrix(A, x + k, stride); mma(C[k/8], A, B[k/8]); }"


def brackets(body):
    """The calls that begin and end running ahead, in order."""
    return re.findall(r"simt::(?:begin|end)_ahead\(\w*\)", device(body))


def test_a_loop_that_loads_and_multiplies_is_bracketed():
    text = device(LOOP)
    assert "{ simt::begin_ahead(true); for (int k = 0;" in text
    assert text.endswith("} simt::end_ahead(); }")


NEST = f"#pragma unroll\nfor (int i = 0; i < m; i += 16) {{ const int j = i + threadIdx.y; {LOOP} }}"
OUTLIVES = "tile A; for (int k = 0; k < n; k++) { load_ldmatrix_trans<8>(A, x, k); mma(C, A, B); }"
AHEAD, BACK, END = "simt::begin_ahead(true)", "simt::begin_ahead(false)", "simt::end_ahead()"


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        (NEST, [AHEAD, END]),  # the outermost alone
        (LOOP + LOOP, [AHEAD, END] * 2),
        (OUTLIVES, [BACK, END]),  # the fragment is brought back
        ("for (int k = 0; k < n; k++) mma(C, A, B);", []),
    ],
)
def test_loops_are_bracketed(body, calls):
    assert brackets(body) == calls


@pytest.mark.parametrize(
    ("inside", "calls"),
    [
        ("if constexpr (wide) { mma(C, B, A); } else { mma(C, A, B); }", 2),
        ('static_assert(n % 8 == 0, "bad size"); mma(C, A, B);', 2),
        ("const int k0 = k + (threadIdx.y % 2)*8; mma(C, A, B[k0]);", 2),
        ("load_ldmatrix(A, x, k);", 0),  # multiplies nothing
        ("mma(C, A, B); sum += C.x[0];", 0),  # reads a fragment
        ("mma(C, A, B); y[k] = 1;", 0),
        ("mma(C, A, B); ++count;", 0),
        ("mma(C, A, B); const float c = scale;", 0),
        ("mma(C, A, B); if (k == 3) { break; }", 0),
        ("mma(C, A, B); if (C.x[0] > 0) { mma(C, A, B); }", 0),
        ("mma(C, A, B); __syncthreads();", 0),
        ("load_generic(A, x, k); mma(C, A, B);", 0),
        ('mma(C, A, B); asm volatile("membar.gl;");', 0),
        ("mma(C, A, B); [&] { mma(C, A, B); }();", 0),
        ("tile S; mma(S, A, B); mma(C, S, B);", 0),  # S starts from its declaration in each turn
    ],
)
def test_a_loop_is_bracketed_unless_it_does_something_else(inside, calls):
    assert len(brackets(f"for (int k = 0; k < n; k++) {{ {inside} }}")) == calls


@pytest.mark.parametrize(
    "function",
    [
        f"void f() {{ {LOOP} }}",  # on the host
        f"void f() {{ {SHUFFLES} {{ x += __shfl_xor_sync(m, x, offset, width); }} }}",
        "static __device__ void load_tiles_q4_0(int * x) { x[0] = 1; memcpy(x, x + 1, 4); }",
        "static __device__ void f(int * x) { x[0] = 1; memcpy(x, x + 1, 4); }",
    ],
)
def test_other_functions_stay_as_they_are(function):
    assert not re.search("ahead|butterfly", one_line(function))


@pytest.mark.parametrize("name", ["mma", "load_ldmatrix", "load_ldmatrix_trans_swizzled", "load_generic"])
@pytest.mark.parametrize(
    "ordinary", ["t.x[0] = xs[0];", "ggml_cuda_memcpy_1<16>(t.x, xs);", "for (int l = 0; l < t.ne; ++l) t.x[l] = 0;"]
)
def test_lanes_catch_up_where_a_fragment_is_handled_element_by_element(name, ordinary):
    text = f"static __device__ void {name}(tile & t, const int * xs) {{\n#ifdef VOLTA\n{ordinary}\n#endif\n}}"
    assert f"simt::end_ahead(); {ordinary}" in one_line(text)


@pytest.mark.parametrize(
    ("body", "operation"),
    [
        ("x += __shfl_xor_sync(0xffffffff, x, offset, width);", "own + other"),
        ("x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, offset, width));", "fmaxf(own, other)"),
        ("x = __hadd2(x, __shfl_xor_sync(0xffffffff, x, offset, width));", "__hadd2(own, other)"),
    ],
)
def test_a_loop_of_xor_shuffles_is_one_butterfly(body, operation):
    text = device(f"{SHUFFLES} {{\n    {body}\n}}")
    assert "offset > 0; offset = 0)" in text  # the loop runs once
    assert "x = simt::butterfly(0xffffffff, x, offset, width, " in text
    assert f"[](auto own, auto other) {{ return {operation}; }});" in text
    assert "__shfl_xor_sync" not in text


def test_lines_of_shuffles_stay_where_they_are():
    text = f"static __device__ void f() {{\n{SHUFFLES} {{\n  x += __shfl_xor_sync(m, x,\n offset, width);\n}}\n}}\n"
    assert rewrite(text, "file.cu", frozenset()).text.count("\n") == text.count("\n")


@pytest.mark.parametrize(
    "loop",
    [
        f"{SHUFFLES} {{ x += __shfl_xor_sync(m, y, offset, width); }}",
        f"{SHUFFLES} {{ x += __shfl_xor_sync(m, x, 2, width); }}",
        f"{SHUFFLES} {{ x += __shfl_down_sync(m, x, offset, width); }}",
        f"{SHUFFLES} {{ x -= __shfl_xor_sync(m, x, offset, width); }}",
        f"{SHUFFLES} {{ x = f(y, __shfl_xor_sync(m, x, offset, width)); }}",
        f"{SHUFFLES} {{ x += __shfl_xor_sync(m, x, offset, width); y++; }}",
        f"{SHUFFLES} {{ a.x += __shfl_xor_sync(m, a.x, offset, width); }}",
        f"{SHUFFLES} x += __shfl_xor_sync(m, x, offset, width);",
        "for (int offset = 16; offset >= 4; offset >>= 1) { x += __shfl_xor_sync(m, x, offset, 32); }",
        "for (int offset = 1; offset < 32; offset <<= 1) { x += __shfl_xor_sync(m, x, offset, 32); }",
    ],
)
def test_other_loops_of_shuffles_stay_as_they_are(loop):
    assert "butterfly" not in device(loop)


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
    assert made.splitlines()[2].endswith("override { void *simt_hand_out(void *, size_t);")
    assert made.splitlines()[6].strip() == "return simt_hand_out(ptr, size);"
    assert made.splitlines()[8].endswith("override { void *simt_give_back(void *); buffer = simt_give_back(buffer);")
    assert made.count("\n") == POOL.count("\n")


@pytest.mark.parametrize("renamed", ["ggml_cuda_pool_leg", "free", "alloc"])
def test_other_classes_and_pools_with_other_members_are_left_alone(renamed):
    """A buffer that is reduced but never given back would stay reduced."""
    text = POOL.replace(renamed, "another")
    assert rewrite(text, "ggml-cuda.cu", frozenset()).text == text


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
    made = rewrite(text, "a.cu", frozenset(), Style(whole=True)).text
    assert made.count("\n") == text.count("\n")
    assert re.findall(r"SIMT_GUARD\w*\(.*?\)", made) == names


LOAD = "template<int n, bool oob> static __device__ int load(const int i) { return !oob || i < n ? i : -1; } "


rewritten = functools.partial(one_line, name="fattn-x.cuh")


def flags(text):
    """The flags of each function whose body moved, by name."""
    found = re.findall(r"simt_once_(\w+) ?\((const bool [^;{]*?)\) \{", text)
    return {name: re.findall(r"const bool (\w+)", arguments) for name, arguments in found}


def test_the_body_moves_the_template_calls_it_and_passes_its_flag_on():
    assert rewritten(LOAD) == (
        "template<int n> [[gnu::noinline]] static __device__ int simt_once_load(const bool oob, const int i); "
        "template<int n, bool oob> static __device__ int load(const int i) { return simt_once_load<n>(oob, i); } "
        "template<int n> [[gnu::noinline]] static __device__ int simt_once_load(const bool oob, const int i) "
        "{ return !oob || i < n ? i : -1; } "
    )
    text = rewritten(
        LOAD + "template<bool last, int n, bool oob, typename T> static __device__ int turn(T i) "
        "{ if (last) { return 0; } constexpr bool other = true; "
        "return load<n, oob>(i) + load<n, other>(1) + load<n, false>(i); }"
    )
    assert flags(text) == {"load": ["oob"], "turn": ["last", "oob"]}
    assert "simt_once_load<n >(oob, i) + simt_once_load<n >(other, 1) + simt_once_load<n >(false, i);" in text


@pytest.mark.parametrize(
    "body",
    [
        "if constexpr (flag) { return 1; } return 0;",
        'static_assert(!flag, "no"); return 0;',
        "constexpr int i = flag && n; return i;",
        "int a[(flag) + 1]; return a[0];",
        "return other<flag>();",
        "return flag + 1;",
    ],
)
def test_a_parameter_that_must_be_constant_stays(body):
    assert "simt_once" not in rewritten(f"template<int n, bool flag> __device__ int f(int i) {{ {body} }}")


@pytest.mark.parametrize(
    "header",
    [
        "template<int n, bool flag = true> __device__ int f(int i)",
        "template<bool flag, int... n> __device__ int f(int i)",
        "template<int n, bool flag> __device__ auto f(int i)",
        "template<int n, bool flag> __device__ int f(int i = 1)",
        "template<int n, bool flag> __device__ int f(int)",
        "template<bool flag> __device__ int f(int i)",
    ],
)
def test_a_header_that_cannot_be_written_again_stays(header):
    assert "simt_once" not in rewritten(f"{header} {{ if (flag) {{ return 1; }} return 0; }}")


def test_a_parameter_of_the_kernel_has_one_value():
    kernel = (
        "template<bool softcap> __global__ void k(int * x) { x[0] = f<4, softcap, true>(1) + f<4, softcap, false>(2); }"
    )
    text = rewritten(
        "template<int n, bool softcap, bool oob> __device__ int f(int i) { return softcap && (oob && i); } " + kernel
    )
    assert flags(text) == {"f": ["oob"]}


def test_one_function_of_two_that_must_stay_keeps_the_other():
    """Overloads share their flags, since a call may mean either."""
    text = LOAD + LOAD.replace("int i)", "float i)").replace("!oob ||", "sizeof(int[oob + 1]) > 4 ||")
    assert "simt_once" not in rewritten(text)


def test_only_attention_kernels_compiled_apart():
    assert "simt_once" not in rewritten(LOAD, name="common.cuh")
    assert "simt_once" not in rewritten(LOAD, style=Style(apart=False))
    assert "simt_once" not in rewritten(LOAD, style=Style(bodies="none"))


def test_whether_a_condition_is_constant_depends_on_the_flag():
    """A sum meets the product before it if the test between them is constant: with this flag, or without."""
    body = "float X = g(); X *= 2; if (!oob || i < stop) { X += a*b; } return X;"
    text = rewritten(f"template<int n, bool oob> __device__ float f(int i) {{ {body} }}")
    assert (
        "simt_is_product_X && (oob ? SIMT_IS_CONSTANT(! true || i < stop) : SIMT_IS_CONSTANT(! false || i < stop))"
        in text
    )


def test_it_computes_what_the_templates_do(tmp_path):
    text = LOAD + (
        "template<bool last, int n, bool oob, typename T> static __device__ int turn(T i) "
        "{ if (last) { return 100; } return 3*load<n, oob>(i) + load<n, true>(i); } "
    )
    calls = [f"turn<{last}, 4, {oob}>({i})" for last in (0, 1) for oob in (0, 1) for i in (2, 7)]
    printed = " ".join(f'std::printf("%d ", {call});' for call in calls)
    for version in (text, rewritten(text)):
        source = tmp_path / "main.cpp"
        source.write_text(f"#include <cstdio>\n#define __device__\n{version}\nint main() {{ {printed} }}")
        subprocess.run(["g++", "-std=c++17", "-w", source, "-o", tmp_path / "main"], check=True)
        said = subprocess.run([tmp_path / "main"], check=True, capture_output=True, text=True).stdout
        assert said == "8 20 8 -4 100 100 100 100 "
