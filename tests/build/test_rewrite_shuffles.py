"""Which loops of xor shuffles become one warp instruction."""

import re

import pytest

from fattn_probe.build.rewrite import rewrite

HEADER = "for (int offset = width/2; offset > 0; offset >>= 1)"


def device(body):
    """A body as that of a device function, rewritten, on one line."""
    text = rewrite(f"static __device__ void f() {{ {body} }}", "file.cu", frozenset()).text
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize(
    ("body", "operation"),
    [
        ("x += __shfl_xor_sync(0xffffffff, x, offset, width);", "own + other"),
        ("x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, offset, width));", "fmaxf(own, other)"),
        ("x = __hadd2(x, __shfl_xor_sync(0xffffffff, x, offset, width));", "__hadd2(own, other)"),
    ],
)
def test_a_loop_of_xor_shuffles_is_one_butterfly(body, operation):
    text = device(f"{HEADER} {{\n    {body}\n}}")
    assert "offset > 0; offset = 0)" in text  # the loop runs once
    assert "x = simt::butterfly(0xffffffff, x, offset, width, " in text
    assert f"[](auto own, auto other) {{ return {operation}; }});" in text
    assert "__shfl_xor_sync" not in text


def test_lines_stay_where_they_are():
    text = f"static __device__ void f() {{\n{HEADER} {{\n  x += __shfl_xor_sync(m, x,\n offset, width);\n}}\n}}\n"
    assert rewrite(text, "file.cu", frozenset()).text.count("\n") == text.count("\n")


@pytest.mark.parametrize(
    "loop",
    [
        f"{HEADER} {{ x += __shfl_xor_sync(m, y, offset, width); }}",
        f"{HEADER} {{ x += __shfl_xor_sync(m, x, 2, width); }}",
        f"{HEADER} {{ x += __shfl_down_sync(m, x, offset, width); }}",
        f"{HEADER} {{ x -= __shfl_xor_sync(m, x, offset, width); }}",
        f"{HEADER} {{ x = f(y, __shfl_xor_sync(m, x, offset, width)); }}",
        f"{HEADER} {{ x += __shfl_xor_sync(m, x, offset, width); y++; }}",
        f"{HEADER} {{ a.x += __shfl_xor_sync(m, a.x, offset, width); }}",
        f"{HEADER} x += __shfl_xor_sync(m, x, offset, width);",
        "for (int offset = 16; offset >= 4; offset >>= 1) { x += __shfl_xor_sync(m, x, offset, 32); }",
        "for (int offset = 1; offset < 32; offset <<= 1) { x += __shfl_xor_sync(m, x, offset, 32); }",
    ],
)
def test_other_loops_stay_as_they_are(loop):
    assert "butterfly" not in device(loop)


def test_host_code_stays_as_it_is():
    text = f"void f() {{ {HEADER} {{ x += __shfl_xor_sync(m, x, offset, width); }} }}"
    assert "butterfly" not in rewrite(text, "file.cu", frozenset()).text
