"""What rewritten divisions compute, compiled: the same as `/`, if the simulator's objects divide plainly."""

import random
import shutil
import subprocess

import pytest

from fattn_probe.llama.build.rewrite import rewrite

HEADER = """
#include <cstdio>
#define __device__
#define SIMT_INTO(type)
namespace simt {
struct divided_by_t {};
inline constexpr divided_by_t divided_by{};
template <typename A> struct numerator { A a; };
template <typename A> constexpr numerator<A> operator*(A a, divided_by_t) { return {a}; }
template <typename A, typename B> constexpr auto operator*(numerator<A> n, B b) { return n.a / b; }
template <typename B> struct reciprocal { B b; };
struct remainder_by_t {};
inline constexpr remainder_by_t remainder_by{};
template <typename A> struct remainder { A a; };
template <typename A> constexpr remainder<A> operator*(A a, remainder_by_t) { return {a}; }
template <typename A, typename B> constexpr auto operator*(remainder<A> n, B b) { return n.a % b; }
struct reciprocal_of_t { template <typename B> constexpr reciprocal<B> operator=(B b) const { return {b}; } };
inline constexpr reciprocal_of_t reciprocal_of{};
template <typename A, typename B> constexpr A & operator*=(A & a, reciprocal<B> r) { return a = a / r.b; }
}
static const int i = 17, j = -5, k = 3, t[2] = {7, 2};
static const float x = 2.75f, y = -0.625f;
static const double z = 9.5;
static int f(int n) { return n + 1; }
"""
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
    (tmp_path / "main.cpp").write_text(HEADER + plain + rewritten + "int main() { plain(); device(); }\n")
    options = ["-std=c++17", "-O0", "-fwrapv", "-w", "main.cpp", "-o", "main"]
    subprocess.run(["g++", *options], cwd=tmp_path, check=True)
    lines = subprocess.run([tmp_path / "main"], check=True, capture_output=True, text=True).stdout.split("\n")[:-1]
    assert len(lines) == 2 * len(expressions) + 2
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]
