"""Bool template parameters that only conditions read become arguments of one copy of a function."""

import functools
import re
import subprocess

import pytest

from fattn_probe.llama.build.rewrite import Style
from tests.llama.build.rewriting import one_line

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
    text = f"template<int n, bool flag> __device__ int f(int i) {{ {body} }}"
    assert "simt_once" not in rewritten(text)


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
