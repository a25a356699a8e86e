"""Which product a sum is fused with, as nvcc does it (docs/measurements/agreement.md); what divisions compute."""

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fattn_probe.llama.build.rewrite import Style, rewrite
from fattn_probe.llama.build.stamp import NATIVE
from tests.llama.build.rewriting import one_line

FUSED, DIVISION = (Path(__file__).with_name(name) for name in ("fused.cpp", "division.h"))
"""A program that says whether BODY fuses its products; what the simulator has for divisions, and variables."""

SOFTCAP = "if (capped) { X = softcap*tanhf(X); }"


def device(body):
    """A body as that of a device function template, rewritten, on one line."""
    return one_line(f"template<bool capped, int n> __device__ void f() {{ {body} }}")


def conditions(body):
    """The conditions under which the sums of a body are fused with an earlier product."""
    return re.findall(r"simt::add\((.*?), simt_left", device(body))


def test_a_product_keeps_its_factors_beside_the_variable():
    text = device(f"float X = g(); {SOFTCAP} X += slope*m;")
    assert "float simt_left_X, simt_right_X; bool simt_is_product_X = false; float X = g();" in text
    assert "X = (simt_left_X = softcap) * (simt_right_X =simt::tanhf(X)), simt_is_product_X = true;" in text
    assert re.search(r"X = simt::add\(.*, simt_left_X, simt_right_X, X, slope,m\);", text)


def test_factors_of_an_array_have_its_dimensions_indices_and_members():
    text = device(
        "T_C C[n]; for (int i = 0; i < n; ++i) { C[i].x[1] *= s; } for (int i = 0; i < n; ++i) { C[i].x[1] += a*b; }"
    )
    assert "T_C simt_left_C[ n ], simt_right_C[ n ];" in text
    assert "simt_left_C[ i ] . x [ 1 ] = C [ i ] . x [ 1 ], C[i].x[1] *= (simt_right_C[ i ] . x [ 1 ] = s)," in text
    text = device("float2 X[n]; X[0].x *= s; X[0].y *= t; X[0].y += a*b;")
    assert "float2 simt_left_X[ n ], simt_right_X[ n ];" in text
    assert "simt_left_X[ 0 ] . y, simt_right_X[ 0 ] . y, X [ 0 ] . y, a,b)" in text


@pytest.mark.parametrize(
    ("body", "condition"),
    [
        (f"float X = g(); {SOFTCAP} X += a*b;", "simt_is_product_X && SIMT_IS_CONSTANT(capped)"),
        ("float X = g(); X *= 2; X += a*b;", "simt_is_product_X"),
        ("float X = a*b; X += c*d;", "simt_is_product_X"),
        # the vec kernel: a pointer's test in the same iteration, for which LLVM copies the loop
        (
            "float X = g(); X *= 2; if (mask && (n == 1 || j < stop)) { X += a*b; }",
            "simt_is_product_X && SIMT_IS_CONSTANT(( n == 1 || j < stop ))",
        ),
        # the mma kernel: product and sum in loops of their own
        (
            "float X[n]; for (int i = 0; i < n; ++i) { X[i] *= 2; } "
            "if (n > 1 || mask) { for (int i = 0; i < n; ++i) { X[i] += a*b; } }",
            "simt_is_product_X && SIMT_IS_CONSTANT(n > 1 || mask)",
        ),
        # the accumulators of the vec kernel: the first of the steps meets the product
        (
            "float X[n]; for (int i = 0; i < n; ++i) { X[i] *= 2; } "
            "for (int k = 0; k < 32; k += 4) { for (int i = 0; i < n; ++i) { X[i] += a*b; } }",
            "simt_is_product_X && k == 0",
        ),
        ("float X = g(); X += a*b;", ""),  # no product
        ("float X = a*b, Y = c; X += c*d;", ""),  # two variables
        ("float X = g(); X *= 2; X = g(); X += a*b;", ""),  # another value
        ("float X[n]; X[0] *= 2; g(X); X[0] += a*b;", ""),  # a function may change it
        ("int X = g(); X *= 2; X += a*b;", ""),
        ("half2 X = g(); X *= 2; X += a*b;", ""),  # which its operators fuse
        ("float2 X = g(); X *= 2; X += a*b;", ""),
        ("float X = g(); X *= 2; X += a*b + c;", ""),  # no product is added
        ("float X = g(); X *= 2; while (g()) { X += a*b; }", ""),
        ("float X = g(); X *= 2; for (; g();) { X += a*b; }", ""),  # has no first value
        ("float X = g(); X *= 2; for (int i = 0, j = 1; i < j; ++i) { X += a*b; }", ""),
        ("if (n) { float X = g(); } X[0] *= 2; X[0] += a*b;", ""),  # the declaration is of another variable
        ("for (int i = 0; i < n; ++i) { float X = g(); X *= 2; } X += a*b;", ""),
        ("float X = g(); if (capped) { X *= 2; } else { X += a*b; }", ""),
    ],
)
def test_when_product_and_sum_meet(body, condition):
    if condition:
        assert conditions(body) == [condition]
    else:
        assert "simt::add" not in device(body)


def test_each_element_has_one_sum_that_is_fused():
    assert len(conditions("float X[2]; X[0] *= 2; X[1] *= 2; X[0] += a*b; X[1] += a*b;")) == 2
    assert len(conditions("float X = g(); X *= 2; X += a*b; X += c*d;")) == 1


def for_amd(body):
    return one_line(f"__device__ void f() {{ {body} }}", style=Style(hip=True))


REDUCED = "float X[n]; X[0] *= f; X[0] = warp_reduce_sum(X[0]);"
SHUFFLED = "{} for (int i = 1; i < n; ++i) {{ X += c*d; }} if (n) {{ X += __shfl_xor_sync(m, X, 8, 32); }}"


@pytest.mark.parametrize("product", ["float X; X = a*b;", "float X = a*b;"], ids=["b11549", "b10566"])
def test_clang_for_amd_fuses_a_product_that_another_lane_reads(product):
    """As in machine code of the vec and mma kernels (docs/measurements/second-opinion.md); nvcc does not."""
    left, right = re.findall(r"simt_(?:left|right)_\d+", for_amd(REDUCED))[:2]
    assert f"const float {left} = X [ 0 ], {right} = f; X[0] *= f;" in for_amd(REDUCED)
    first = f"__builtin_fmaf({left}, {right}, __shfl_xor_sync(0xFFFFFFFF, X[0], WARP_SIZE/2, WARP_SIZE))"
    assert f"X[0] = warp_reduce_sum<WARP_SIZE/2>({first});" in for_amd(REDUCED)
    sums = for_amd(SHUFFLED.format(product))
    assert "shfl" not in device(REDUCED) and "X += __shfl_xor_sync(m, X, 8, 32);" in device(SHUFFLED.format(product))
    assert "float X; X = (simt_left_X = a) * (simt_right_X =b), simt_is_product_X = true;" in sums
    reset, factors = "simt_is_product_X = false", "simt_is_product_X, simt_left_X, simt_right_X"
    assert f"simt_right_X, X, c,d), {reset}; }}" in sums
    assert f"X = simt::add({factors}, X, __shfl_xor_sync(m, X, 8, 32), 1.0f), {reset};" in sums


@pytest.mark.parametrize(
    "body",
    [
        "float X[n]; X[0] *= f; X[1] = warp_reduce_sum(X[1]);",
        "half2 X[n]; X[0] *= f; X[0] = warp_reduce_sum(X[0]); float Y; Y = g(); Y += __shfl_xor_sync(m, Y, 8, 32);",
    ],
)
def test_other_reductions_stay(body):
    assert for_amd(body) == f"__device__ void f() {{ {body} }}"


LOAD = "__device__ void load(int n) { if (n == 1 || j < n) { g(!n || j < 3 ? a : b); } }"


def test_the_branches_of_a_function_between_the_two_are_counted():
    """As in the tile kernel: nvcc inlines `load`, and a branch in it ends the product's basic block."""
    head = "template<typename T_X> __device__ void f(T_X * const X)"
    text = one_line(f"{LOAD} {head} {{ X[i] *= s; for (int k = 0; k < 4; ++k) {{ load(k); X[i] += a*b; }} }}")
    factors = "T_X simt_left_X[255], simt_right_X[255]; bool simt_is_product_X = false; unsigned simt_branches_X = 0;"
    assert f"{{ {factors} simt_left_X[ i ] = X [ i ]" in text
    assert "simt_is_product_X = true, simt_branches_X = simt::branches();" in text
    assert "simt::add(simt_is_product_X && k == 0 && simt::branches() == simt_branches_X, simt_left_X[ i ]" in text
    assert "if (n == 1 || simt::branch( j < n)) { g(!n || simt::branch( j < 3 )? a : b); }" in text


@pytest.mark.parametrize(
    "text",
    [
        "__device__ void f() { float X = g(); load(1); X *= 2; X += a*b; }",  # not between the two
        "__device__ void f() { float X = g(); X *= 2; X += a*b; load(1); }",
        "__device__ void f(float * const X) { X[0] *= 2; load(1); X[0] += a*b; }",  # perhaps in global memory
        "__device__ void f() { float X = g(); X *= 2; log(1); X += a*b; }",  # has no branch
    ],
)
def test_no_other_branch_is_counted(text):
    log = "__device__ void log(int n) { if (n) { g(); } }"
    assert "simt::branch" not in one_line(f"{LOAD} {log} {text}")


TESTED = "float X = X0; if (capped) { X *= a; } if (n == 1 || mask[0] > 0) { X += mask[0]*b; }"
DECLARED = "float X = X0; if (capped) { float Y = X*a; Y += mask[0]*b; X = Y; } else { X += mask[0]*b; }"


@pytest.mark.parametrize("level", ["-O0", "-O2"])
@pytest.mark.parametrize(("body", "holds"), [(TESTED, "1 1 1 1"), (DECLARED, "1 1 0 1")], ids=["tested", "declared"])
def test_the_rewritten_code_fuses_what_it_says(body, holds, level, tmp_path):
    """With one element a test at compile time decides, with two one at run time does."""
    body = device(body)
    source = tmp_path / "sum.cpp"
    source.write_text(FUSED.read_text().replace("BODY", body[body.index("{") + 1 : body.rindex("}")]))
    flags = [level, "-std=c++17", "-mfma", "-ffp-contract=fast", f"-I{NATIVE / 'sim'}"]
    subprocess.run(["g++", *flags, source, "-o", tmp_path / "sum"], check=True)
    assert subprocess.run([tmp_path / "sum"], check=True, capture_output=True, text=True).stdout.strip() == holds


def test_a_test_may_choose_the_product():
    """As in the tile kernel: what is fused follows from when the test is decided, and from the thread's elements."""
    text = device("float X[n]; X[0] *= 4; X[0] += mask ? slope*m : 0.0f;")
    earlier = "simt::add(simt_is_product_X, simt_left_X[ 0 ], simt_right_X[ 0 ], X [ 0 ], slope, m)"
    one_of = "simt::add_one_of(sizeof(X)/sizeof(X [ 0 ]), X [ 0 ], slope,m )"
    assert f"X[0] = mask ? SIMT_IS_CONSTANT(mask) ? {earlier} : {one_of}: X [ 0 ] + 0.0f;" in text
    text = device("float X[n]; X[0] += mask ? slope*m : 0.0f;")  # no earlier product
    assert "SIMT_IS_CONSTANT(mask) ? simt::add(X [ 0 ], slope, m) : simt::add_one_of(" in text


LEAVES = ["i", "j", "k", "x", "y", "z", "t[0]", "t[k/3]", "f(i)", "-k", "(float) i", "7", "2.5f", "(int) sizeof(x)"]
OPERATORS = ["/", "/", "/", "*", "+", " - ", " / ", " * ", " < "]
STATEMENTS = """
    int n = 100; n /= k + 1; n /= n / 9 / 2;
    n += 1000 % i * 3 / k % 7 + n % (k + 2) / 1 - i % k % 2;
    float a = 3.5f; a /= 2*x; a = a / y / 2 > 1 ? a/x : x/a;
    constexpr int c = 64/8; int array[c/2 + 6/4]; array[1/2] = c;
    switch (n) { case 256/c/8: n = 3; break; default: n = 4; }
    for (int o = 32/c; o > 0; o /= 2) { n += o; }
    return n + a + sizeof(array) + array[0];
"""


def expression(source: random.Random, depth: int) -> str:
    if depth == 0:
        return source.choice(LEAVES)
    text = expression(source, depth - 1) + source.choice(OPERATORS) + expression(source, source.randrange(depth))
    return f"(x + ({text}))" if source.random() < 0.3 else text  # a float, for no integer divisor may be 0


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_division_keeps_its_meaning(tmp_path):
    source = random.Random(0)
    expressions = [expression(source, 1 + number % 4) for number in range(150)]
    prints = "".join(f'std::printf("%a\\n", (double) ({text}));\n' for text in expressions)
    body = f'{{ {prints} }} {{ auto g = [] {{ {STATEMENTS} }}; std::printf("%a\\n", (double) g()); }}'
    plain, device = f"void plain() {{ {body} }}\n", f"__device__ void device() {{ {body} }}\n"
    rewritten = rewrite(device, "file.cu", frozenset()).text
    assert rewritten.count("divided_by") > 100
    (tmp_path / "main.cpp").write_text(DIVISION.read_text() + plain + rewritten + "int main() { plain(); device(); }\n")
    options = ["-std=c++17", "-O0", "-fwrapv", "-w", "main.cpp", "-o", "main"]
    subprocess.run(["g++", *options], cwd=tmp_path, check=True)
    lines = subprocess.run([tmp_path / "main"], check=True, capture_output=True, text=True).stdout.split("\n")[:-1]
    assert len(lines) == 2 * len(expressions) + 2
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]
