import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fattn_probe.llama.build.rewrite import Style, rewrite
from fattn_probe.llama.build.rewrite_checker import without_conversions
from fattn_probe.llama.build.rewrite_kernels import KernelInfo
from tests.llama.build.rewriting import squeezed

PTX = frozenset(
    (
        *("movmatrix_sync_aligned_m8n8_trans_b16", "cp_async_wait_all", "cp_async_cg_shared_global_16"),
        *("ldmatrix_sync_aligned_m8n8_x2_b16", "mma_sync_aligned_m8n8k16_row_col_s32_s8_s8_s32"),
    )
)


def rewritten(text: str) -> str:
    return rewrite(text, "file.cu", PTX).text


def device(body: str) -> str:
    """A body as that of a device function, rewritten."""
    head, tail = "static __device__ void f() { ", " }"
    return rewritten(head + body + tail).removeprefix(head).removesuffix(tail)


def test_a_trap_of_hip_ends_in_the_simulator():
    """In vendors/hip.h it is a macro, an abort(), which killed the runner: "lost" instead of a finding."""
    text = "static __device__ void f() { __trap(); }"
    hip = Style(fast_math=False, hip=True)
    assert rewrite(text, "common.cuh", PTX, hip).text == text.replace("__trap", "simt::trap")
    assert rewritten(text) == text


DESCRIBE = "if (simt::describe(__PRETTY_FUNCTION__, simt::bounds({}))) return;"


@pytest.mark.parametrize(
    ("header", "bounds", "kernel"),
    [
        ("static __global__ void k(int n)", "", KernelInfo("k", 1, 0, ())),
        ("__launch_bounds__(256, 1)\nstatic __global__ void k(int n)", "256 , 1", KernelInfo("k", 2, 0, ())),
        ("static __global__ void __launch_bounds__(N) k(int n)", "N", KernelInfo("k", 1, 0, ())),
        ("__global__ __launch_bounds__(N, 1) void\n  k(int n)", "N , 1", KernelInfo("k", 2, 0, ())),
        (
            "template <int D, typename T, bool flag = (1 > 0)> // D == head size\n"
            "__launch_bounds__(get(D)*2,\n  occupancy<T>(D))\nstatic __global__ void k(const T * x)",
            "get ( D ) * 2 , occupancy < T > ( D )",
            KernelInfo("k", 4, 0, ("D", "T", "flag")),
        ),
        ("template <>\n__global__ void k<3>(int n)", "", KernelInfo("k", 2, 0, ())),
        ("template <template <int> class A, int... n>\n__global__ void k()", "", KernelInfo("k", 2, 0, ("A", "n"))),
        ("[[maybe_unused]] static __global__ void k(int n)", "", KernelInfo("k", 1, 0, ())),
    ],
)
def test_kernel_describes_itself(header, bounds, kernel):
    result = rewrite(header + " {\n}\n", "file.cu", PTX)
    assert result.kernels == (replace(kernel, first_line=header.count("\n") + 2),)
    assert result.text.endswith("{ " + DESCRIBE.format(bounds) + "\n}\n")
    assert "__launch_bounds__" not in result.text
    assert result.text.count("\n") == header.count("\n") + 2


def test_without_bodies_a_kernel_only_describes_itself():
    kernel = "__launch_bounds__(N) __global__ void k(int n) {\n#pragma unroll\n  for (;;) { f(n / 2.0f); }\n}\n"
    text = kernel + "int host() { g(); }\n"
    found = rewrite(text, "fattn-vec.cuh", PTX, Style(bodies="none")).text
    declared, kernel = "namespace simt_body { void k(int n); }", f"__global__ void k(int n) {{ {DESCRIBE.format('N')}"
    assert squeezed(found) == f"{declared} {kernel} simt_body::k(n); }} int host() {{ g(); }} "
    assert found.count("\n") == text.count("\n")


SPLIT = """\
template<int D, bool softcap> // D == head size
__launch_bounds__(D, 1)
static __global__ void k(
        const char * Q, float2 * dst,
        const uint3 ne) {
#ifdef AVAILABLE
    f<D>(Q[0]); // a comment
#endif
}
"""
LAUNCH = "template <int D> void launch(int n) {{\n    k<D><<<1, 1>>>(n){};\n}}\n"
BODY = "template < int D , bool softcap > void k(const char * Q , float2 * dst , const uint3 ne)"


def test_a_kernel_template_of_an_attention_header_calls_a_body_that_may_be_elsewhere():
    whole, declared = (rewrite(SPLIT, "fattn-x.cuh", PTX, Style(bodies=bodies)).text for bodies in ("all", "none"))
    text = f'#include "once.cuh"\n#define N 1\n{SPLIT}{LAUNCH.format("")}'
    alone = rewrite(text, "fattn-x.cuh", PTX, Style(bodies="kernels")).text
    kernel = f"{DESCRIBE.format('D , 1')} simt_body::k<D, softcap>(Q, dst, ne);"
    for text in (whole, declared):
        assert text.count("\n") == SPLIT.count("\n")
        assert text.startswith(f"namespace simt_body {{ {BODY}; }} template<int D, bool softcap>")
        assert f"{{ {kernel}" in text
    assert declared.endswith(f"{kernel}\n\n\n\n}}\n")
    lines = whole.splitlines()
    assert lines[4].endswith(f"}} namespace simt_body {{ {BODY} {{")
    assert lines[5:] == ["#ifdef AVAILABLE", "    f<D>(Q[0]); // a comment", "#endif", "} }"]
    assert alone == f"\n#define N 1\n\n\n\n\nnamespace simt_body {{ {BODY} {{\n" + "\n".join([*lines[5:], *[""] * 4])


@pytest.mark.parametrize(
    "header",
    [
        "template <int D = 1> __global__ void k(int n) {",
        "template <int D> __global__ void k(int) {",
        "template <int D> __global__ void k(int n,\n#ifdef X\nint m\n#endif\n) {",
    ],
)
def test_another_kernel_stays_whole(header):
    assert "simt_body" not in rewrite(header + "\nf();\n}\n", "fattn-x.cuh", PTX).text


def test_a_change_in_a_body_leaves_the_text_without_bodies():
    device = "static __device__ float g(int n) {{\n    return n{};\n}}\n"
    constant = "static constexpr __device__ int c() { return 8; }\n"

    def text(change):
        whole = device.format(change) + constant + SPLIT.replace("Q[0]", f"Q[0]{change}")
        return rewrite(whole, "fattn-x.cuh", PTX, Style(bodies="none")).text

    assert text("") == text(" + 1 /* more */")
    assert text("").startswith(f"static __device__ float g(int n) ;\n\n\n{constant}")


def test_a_change_in_a_kernel_or_in_host_code_behind_leaves_the_text_with_device_functions():
    """No body there has a line of its own, so its length does not matter either."""
    device = "static __device__ float g(int n) {\n    return n;\n}\n"

    def text(change, before=""):
        whole = before + device + SPLIT.replace("Q[0]", f"Q[0]{change}") + LAUNCH.format(change)
        return rewrite(whole, "fattn-x.cuh", PTX, Style(bodies="device")).text

    assert text("") == text(" + 1 /* more */") == text("\n + 1\n")
    assert text("").startswith(device) and text("").endswith("template <int D> void launch(int n) {}\n")
    first = text("", SPLIT.replace("k(", "first("))
    assert first.count("\n") == (SPLIT + device + SPLIT + LAUNCH).count("\n") - 4 - 2, "lines before g are kept"


def test_a_body_that_defines_a_macro_keeps_its_directives():
    text = "__global__ void k() {\n#ifdef X\n#define Y 1\n#endif\n    f();\n}\n"
    found = rewrite(text, "fattn-x.cuh", PTX, Style(bodies="none")).text
    assert found.splitlines()[1:] == ["#ifdef X", "#define Y 1", "#endif", "", "}"]


def test_a_declaration_loses_its_launch_bounds_and_conditional_ones_stay_so():
    result = rewrite("template <int D> __launch_bounds__(D, 1) __global__ void k(int n);", "file.cu", PTX)
    assert (squeezed(result.text), result.kernels) == ("template <int D> __global__ void k(int n);", ())
    text = (
        "#if ARCH >= 700\n    __launch_bounds__(w()*2, 1)\n#else\n    __launch_bounds__(w()*2, 2)\n#endif\n"
        "static __global__ void k(int n) {}"
    )
    lines = rewritten(text).split("\n")
    assert squeezed(lines[1]).strip() == "#define simt_bounds_k_6 w ( ) * 2 , 1"
    assert squeezed(lines[3]).strip() == "#define simt_bounds_k_6 w ( ) * 2 , 2"
    assert lines[5] == "static __global__ void k(int n) { " + DESCRIBE.format("simt_bounds_k_6") + "}"


LAMBDA = "simt::launch_kernel([=](auto... simt_a) {{ {}(SIMT_ARGUMENT(simt_a)...); }}, "


@pytest.mark.parametrize(
    ("before", "callee", "config"),
    [
        ("", "f", "g, b, s, st"),
        ("", "f<int, 3>", "g, b"),
        ("", "ns::f<A<B<3>>, (x > 2)>", "g, b, 0, st"),
        ("", "f<x<3>::value>", "n >> 3, a < b ? a : b"),
        ("if (x) ", "p.kernel", "grid[0], MIN(a, b), 0, ctx.stream()"),
        ("return; ", "p->kernel", "dim3(1, 2), 32"),
        ("a = b; ", "(*kernel)", "g, b"),
        ("else ", "table[i]", "g, b"),
    ],
)
def test_launch_is_a_call_in_its_order(before, callee, config):
    text = f"{before}{callee}<<<{config}>>>(x, y);"
    assert rewritten(text) == before + LAMBDA.format(callee) + config + ")(x, y);"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (  # bounds without an alternative are unknown
            "#ifdef X\n__launch_bounds__(256, 1)\n#endif\n__global__ void k() {}",
            "#ifdef X\n \n#endif\n__global__ void k() { " + DESCRIBE.format("") + "}",
        ),
        ("f<1>\n // why\n <<<g,\n b>>>\n (x);", LAMBDA.format("f<1>\n // why\n ") + "g,\n b)\n (x);"),
        ("#define RUN(k) \\\n k<<<g, b>>>( \\\n x)", "#define RUN(k) \\\n " + LAMBDA.format("k") + "g, b)( \\\n x)"),
        ("#define U #pragma unroll", "#define U "),
        ("#define U _Pragma", "#define U _Pragma"),
        ("#define U \\\n # pragma  unroll 4 \\\n for (;;)", "#define U \\\n \\\n for (;;)"),
        ("#pragma unroll\n  # pragma unroll 4\n#pragma once\n", "\n\n#pragma once\n"),
        ("void f() { __shared__ int x; }", "void f() { __shared__ int x; }"),
        ("__device__ void f() { x[i] /= y + 1; }", "__device__ void f() { x[i] *= simt::reciprocal_of = y + 1; }"),
        (
            "__device__ void f() { expf(a) + __expf(b) + sqrtf(__frcp_rn(c)) + fmaxf(d, e); }",
            "__device__ void f() { simt::expf(a) + simt::expf(b) + simt::sqrtf(simt::frcp_rn(c)) + fmaxf(d, e); }",
        ),
    ],
)
def test_text_keeps_its_lines_and_what_is_no_part_of_cuda(text, expected):
    assert rewritten(text) == expected


@pytest.mark.parametrize("hip", [True, False])
def test_lanes_of_an_amd_wave_wait_where_upstream_relies_on_their_lockstep(hip):
    text = "#ifndef GGML_USE_HIP // why\n    // none\n    __syncwarp();\n#endif\n#ifndef GGML_USE_HIP\nf();\n#endif\n"
    first, *rest = rewrite(text, "common.cuh", PTX, Style(hip=hip)).text.split("\n")
    assert first == ("#if 1" if hip else "#ifndef GGML_USE_HIP // why")
    assert rest == text.split("\n")[1:]


@pytest.mark.parametrize(
    ("asm", "call"),
    [
        ('asm volatile("cp.async.wait_all;");', "simt::ptx::cp_async_wait_all();"),
        (
            'asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" : : "r"(dst), "l"(src));',
            "simt::ptx::cp_async_cg_shared_global_16( (dst), (src));",
        ),
        (
            'asm("ldmatrix.sync.aligned.x2.m8n8.shared.b16 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(c));',
            "simt::ptx::ldmatrix_sync_aligned_m8n8_x2_b16( (a), (b), (c));",
        ),
        (
            'asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(ret) : "r"(x));',
            "simt::ptx::movmatrix_sync_aligned_m8n8_trans_b16( (ret), (x));",
        ),
        (
            'asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 " "{%0, %1}, {%2}, {%3}, {%0, %1};"'
            ' : "+r"(D.x[0]), "+r"(D.x[1]) : [a] "r"(A.x[0]), "r"(f(B, 2)) : "memory", "cc");',
            "simt::ptx::mma_sync_aligned_m8n8k16_row_col_s32_s8_s8_s32( (D.x[0]), (D.x[1]), (A.x[0]), (f(B, 2)) );",
        ),
    ],
)
def test_known_ptx_is_a_call(asm, call):
    result = rewrite(asm, "file.cu", PTX)
    assert re.sub(r"\s+", "", result.text) == re.sub(r"\s+", "", call)
    assert result.unknown_ptx == ()


def test_operands_stay_on_their_lines():
    text = 'asm volatile("ldmatrix.sync.aligned.m8n8.x2.b16 {%0, %1}, [%2];"\n : "=r"(xi[0]), "=r"(xi[1])\n : "l"(xs));'
    assert [line.replace(" ", "") for line in rewritten(text).split("\n")] == [
        "simt::ptx::ldmatrix_sync_aligned_m8n8_x2_b16(",
        "(xi[0]),(xi[1]),",
        "(xs));",
    ]


CHOSEN = """asm volatile(
#if WIDE
    "cp.async.cg.shared.global.L2::256B [%0], [%1], 16;"
#else
    "cp.async.ca.shared.global "
    "[%0], [%1], 16;"
#endif
    ::"r"(to), "l"(from));"""


def test_a_text_that_the_preprocessor_chooses_is_a_call_in_each_branch():
    result = rewrite(CHOSEN, "file.cu", PTX | {"cp_async_ca_shared_global"})
    assert [line.replace("  ", " ").strip() for line in result.text.split("\n")] == [
        "",
        "#if WIDE",
        "simt::ptx::cp_async_cg_shared_global_16",
        "#else",
        "simt::ptx::cp_async_ca_shared_global",
        "",
        "#endif",
        "((to), (from));",
    ]
    assert rewrite(CHOSEN, "file.cu", PTX).unknown_ptx == (("cp.async.ca.shared.global", 1),)


@pytest.mark.parametrize(
    "text", ['"cp.async.wait_all;"\n#if A\n"a;"\n#else\n"b;"\n#endif\n', '"a"\n#if A\n"b;"\n#endif\n']
)
def test_a_text_of_which_the_preprocessor_chooses_a_part_is_reported(text):
    assert len(rewrite(f"asm({text});", "file.cu", PTX | {"a", "ab", "b"}).unknown_ptx) == 1


@pytest.mark.parametrize(
    ("text", "mnemonic"),
    [
        ("prefetch.global.L2 [%0];", "prefetch.global.L2"),
        ("movmatrix.sync.aligned.m8n8.trans.b16 %1, %0;", "movmatrix.sync.aligned.m8n8.trans.b16"),
        ("movmatrix.sync.aligned.m8n8.trans.b16 %0, 1;", "movmatrix.sync.aligned.m8n8.trans.b16"),
        ("cp.async.wait_all; movmatrix.x %0, %1;", "cp.async.wait_all"),
        ("\\n v_mul_i32_i24 %0, %1\\n v_add3_u32 %0\\n", "v_mul_i32_i24"),
        ("s_waitcnt vmcnt(0)\\n v_mul_i32_i24 %0, %1", "v_mul_i32_i24"),
    ],
)
def test_ptx_that_the_simulator_would_get_wrong_is_reported(text, mnemonic):
    result = rewrite(f'\nasm("{text}" : "=r"(a) :\n "r"(b));', "file.cu", PTX)
    assert result.unknown_ptx == ((mnemonic, 2),)
    assert squeezed(result.text) == f' simt::unknown_ptx("{mnemonic}", __FILE__, __LINE__) ;'


@pytest.mark.parametrize(
    ("statement", "call"),
    [
        ('asm volatile("s_waitcnt vmcnt(%0)\\n\\ts_nop 0" :: "n"(N) : "memory");', "simt::ptx::s_nop((N));"),
        ('asm volatile("" ::: "memory");', "simt::ptx::nothing();"),
        ('asm("s_wait_dscnt 0\\n\\tcp.async.wait_all;");', "simt::ptx::cp_async_wait_all();"),
        ('asm("" : "+v"(x));', 'simt::unknown_ptx("", __FILE__, __LINE__) ;'),
    ],
)
def test_instructions_without_an_effect_are_left_out(statement, call):
    assert squeezed(rewrite(statement, "file.cu", PTX | {"s_nop", "nothing"}).text).replace(" ", "") == call.replace(
        " ", ""
    )


@pytest.mark.parametrize(
    ("declaration", "reference"),
    [
        ("extern __shared__ half2 tile_Q[];", "half2 * const tile_Q = simt::dynamic_shared<half2>();"),
        ("extern __shared__ __align__(16) char data[];", "char * const data = simt::dynamic_shared<char>();"),
        ("__shared__ float v[32];", "float (&v)[32] = simt::static_shared<float[(32)]>([]{});"),
        (
            "static __shared__ alignas(16) half KQ[a > b ? a : b][n+1];",
            "half (&KQ)[a > b ? a : b][n+1] = simt::static_shared<half[(a > b ? a : b)][(n + 1)]>([]{});",
        ),
        (
            "__shared__ float _k[n], s;",
            "float (&_k)[n] = simt::static_shared<float[(n)]>([]{}), & s = simt::static_shared<float>([]{});",
        ),
        (
            "[[maybe_unused]] __shared__ typename A<T, 2>::Storage s;",
            "[[maybe_unused]] typename A<T, 2>::Storage & s"
            " = simt::static_shared<typename A < T , 2 > :: Storage>([]{});",
        ),
        (
            "__shared__ half v[D/2];",
            "half (&v)[D*simt::divided_by*2] = simt::static_shared<half[(D *simt::divided_by* 2)]>([]{});",
        ),
    ],
)
def test_shared_memory_is_a_reference(declaration, reference):
    assert squeezed(device(declaration)).strip() == reference


@pytest.mark.parametrize(
    "header",
    [
        "static __device__ __forceinline__ float f(float a)",
        "template <typename T> static constexpr __device__ T f(T a) noexcept",
        "struct A { __device__ A(float a) : x(a), y{1}",
        "struct A { float x; __device__ A & operator=(const A & a)",
        "struct A { __device__ auto operator()(float a) const -> float",
        "auto f = [=] __device__ (float a)",
        "#ifdef X\n__device__ void f(int a)\n#else\n__device__ void f(float a)\n#endif\n",
    ],
)
def test_division_in_device_code(header):
    assert rewritten(header + " { a = a / 3.0f; }").endswith("{ a = a *simt::divided_by* 3.0f; }")


@pytest.mark.parametrize(
    "text",
    [
        "float f(float a) { return a / 3.0f; }",
        "static __host__ __device__ float f(float a) { return a / 3.0f; }",
        "__device__ __host__ float f(float a) { return a / 3.0f; }",
        "__device__ float f(float a); float g(float a) { return a / 3.0f; }",
        "static const __device__ float t[2] = {1 / x, 2};",
        "__device__ void f() { /* a / b */ \"a / b\"; '/'; // a / b\n }",
        "__device__ void f() {\n#define HALF(x) ((x) / 2)\n#if A / 2 > 3\n#endif\n }",
        "__device__ void f() { sizeof(a) / sizeof(b) + 64 / 8 + 0xff / 3u; }",
        "__device__ void f() { std::expf(x); a.expf(x); p->expf(x); &expf; my_expf(x); }",
    ],
)
def test_arithmetic_that_is_left(text):
    assert rewritten(text) == text


def test_division_by_a_float_literal_is_rewritten():
    assert device("1.0f / 2; 1 / 2.0f; 1 / 2e3f;").count("simt::divided_by") == 3


@pytest.mark.parametrize(("turns", "unrolled"), [("", 64), (" 4", 4), ("(1)", 1), (" ROWS", 64), (" 2 * 4", 64)])
@pytest.mark.parametrize(
    "style", [("a.cu", Style(unrolls=True)), ("a/fattn-vec.cuh", Style())], ids=["asked", "scalar"]
)
def test_loops_are_unrolled_by_gcc_as_often_as_nvcc_would(style, turns, unrolled):
    # those of scalar kernels always
    text = f"#pragma unroll{turns}\nfor (;;) {{}}\n"
    assert rewrite(text, style[0], PTX, style[1]).text == f"#pragma GCC unroll {unrolled}\nfor (;;) {{}}\n"


SOUP = [
    *["(", ")", "[", "]", "{", "}", "<", ">", ",", ";", "=", ":", "::", "/", "/=", "*", ".", "->", "#", "<<<"],
    *["__global__", "__device__", "__host__", "__launch_bounds__", "__shared__", "extern", "static", "template"],
    *["operator", "alignas"],
    *["asm", "volatile", '"movmatrix.sync"', '"=r"', "f", "x", "1", "2.0f", "sizeof", "expf"],
    *("#if X\n", "#else\n", "#endif\n", "#pragma unroll\n", "\n", "// c\n", "/* c\n */", ">>>", "'"),
]


@given(st.lists(st.sampled_from(SOUP), max_size=40))
def test_any_text_keeps_its_number_of_lines(words):
    text = " ".join(words)
    assert rewritten(text).count("\n") == text.count("\n")


def test_patterns_match_a_declaration_that_the_checker_looks_at():
    line = "int kb0_stop  = min(iter_k, kb0_start + kbc_stop - kbc);"
    text = rewrite(f"__device__ void f() {{ {line} }}", "file.cu", frozenset()).text
    assert line not in text
    assert line in without_conversions(text)


WHOLE = Style(fast_math=False, whole=True)


def test_a_files_shared_array_is_declared_where_it_is_used():
    text = (
        "extern __shared__ float tile[];\n__device__ void a() { tile[0] = 1; tile[1] = 2; }\n__global__ void b() { }\n"
    )
    lines = rewrite(text, "file.cu", PTX, WHOLE).text.split("\n")
    assert squeezed(lines[0]).strip() == ""
    assert lines[1].startswith("__device__ void a() { float * const tile = simt::dynamic_shared<float>(); tile[0] = 1;")
    assert "tile" not in lines[2]


def test_device_code_prints_and_asserts_by_the_simulator():
    text = (
        '__global__ void k() { printf("%d", 1); assert(n > 0); s.clock(); }\nint main() { printf("x"); assert(1); }\n'
    )
    text += "__host__ __device__ void f(float x) { printf(t); expf(x); }\n"
    device, host, both = rewrite(text, "file.cu", PTX, WHOLE).text.splitlines()
    assert 'simt::print("%d", 1); simt_assert(n > 0); s.clock();' in device
    assert host == 'int main() { printf("x"); assert(1); }'
    assert "{ simt::print(t); expf(x); }" in both


@pytest.mark.parametrize(
    ("fast", "written"),
    [(True, "simt::expf(simt::sqrtf(x)) + simt::expf(x)"), (False, "simt::precise::expf(sqrtf(x)) + simt::expf(x)")],
)
def test_functions_are_approximated_only_if_asked(fast, written):
    text = "__device__ float f(float x) { return expf(sqrtf(x)) + __expf(x); }"
    assert written in rewrite(text, "file.cu", PTX, Style(fast_math=fast, whole=True)).text


def test_the_first_statement_of_a_kernel():
    kernels = rewrite("__global__ void k(int n)\n{\n    // nothing yet\n    n++;\n}\n", "file.cu", PTX, WHOLE).kernels
    assert [(kernel.name, kernel.line, kernel.first_line) for kernel in kernels] == [("k", 1, 4)]
