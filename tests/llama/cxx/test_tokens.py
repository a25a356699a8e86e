import pytest
from hypothesis import given
from hypothesis import strategies as st

from fattn_probe.llama.cxx.includes import included
from fattn_probe.llama.cxx.tokens import Token, draft_of, spans_of, tokenize


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a/b//c\n/d", ["name a", "punct /", "name b", "comment //c", "punct /", "name d"]),
        ("x /* a\n / */ y", ["name x", "comment /* a\n / */", "name y"]),
        ("u8\"a\\\"/\" L'\\''", ['string u8"a\\"/"', "char L'\\''"]),
        ('R"x(a)"/*)x" u8R"(\n)"', ['string R"x(a)"/*)x"', 'string u8R"(\n)"']),
        ("1'000'000 0xFFu 1.5e-3f .5f", ["number 1'000'000", "number 0xFFu", "number 1.5e-3f", "number .5f"]),
        ("f<<<1>>>(", ["name f", "punct <<<", "number 1", "punct >", "punct >", "punct >", "punct ("]),
        ("a<<2 >>=", ["name a", "punct <<", "number 2", "punct >>="]),
        ("C>>>::x", ["name C", "punct >", "punct >", "punct >", "punct ::", "name x"]),
        ("  #define A(x) \\\n x/2 /* y\n */ + 1\nz", ["directive   #define A(x) \\\n x/2 /* y\n */ + 1", "name z"]),
        ("#error don't\nx", ["directive #error don't", "name x"]),
        ('#define S "/*"\nx', ['directive #define S "/*"', "name x"]),
        ("// a \\\n b\nx", ["comment // a \\\n b", "name x"]),
        ("a /= b->c", ["name a", "punct /=", "name b", "punct ->", "name c"]),
    ],
)
def test_kinds(text, expected):
    assert [f"{token.kind} {token.text}" for token in tokenize(text) if token.kind != "space"] == expected


@given(st.text(alphabet="ab1. \n\t\\\"'/*#<>()[]{}R:=-+,;\r", max_size=60))
def test_any_text_is_the_join_of_its_tokens(text):
    assert "".join(token.text for token in tokenize(text)) == text


IDENTIFIERS = st.sampled_from(["x", "tile_Q", "f16"])
PIECES = st.one_of(
    IDENTIFIERS.map(lambda text: Token("name", text)),
    st.sampled_from(["0", "1'000", "0x1fu", "2.5e-3f"]).map(lambda text: Token("number", text)),
    st.sampled_from(["<<<", "<<=", "->", "::", "/", "/=", ">", "...", "("]).map(lambda text: Token("punct", text)),
    st.sampled_from(['"a/b"', '"\\""', 'R"--(")"//)--"']).map(lambda text: Token("string", text)),
    st.sampled_from(["'/'", "'\\''"]).map(lambda text: Token("char", text)),
    st.sampled_from(["/* a\n'\" */", "//b\n"]).map(lambda text: Token("comment", text.removesuffix("\n"))),
)


@given(st.lists(PIECES, max_size=20))
def test_tokens_apart_are_found_again(pieces):
    text = "".join(piece.text + "\n " for piece in pieces)
    assert [token for token in tokenize(text) if token.kind != "space"] == pieces


def test_brackets_of_each_preprocessor_branch_and_spans_are_the_outermost_ranges():
    draft = draft_of(tokenize("#if A\nf(int a) {\n#else\nf(float a) {\n#endif\n g(x); }"))
    braces = [index for index, word in enumerate(draft.words) if word in "{}"]
    assert draft.mates[braces[2]] == braces[1]
    assert [draft.lines[index] for index in braces] == [2, 4, 6]
    draft = draft_of(tokenize("( ] x )"))
    assert draft.mates == [3, -1, -1, 0]
    spans = spans_of([(10, 20), (12, 15), (30, 31), (1, 3)])
    assert [index for index in range(40) if index in spans] == [1, 2, *range(10, 20), 30]


def test_what_a_file_includes_is_found_beside_it_in_the_folder_and_above(tmp_path):
    texts = {
        "x.cu": '#include "common.cuh"\n#include <vector>\n// #include "other.cuh"\n',
        "common.cuh": '#pragma once\n  # include "cuda/vendors/cuda.h"\n#include "../ggml.h"\n#include "gone.h"\n',
        "vendors/cuda.h": '#include "../mma.cuh"\n#include "common.cuh"\n',
        "mma.cuh": "",
        "other.cuh": "",
        "../ggml.h": "",
    }
    cuda = tmp_path / "cuda"
    (cuda / "vendors").mkdir(parents=True)
    for path, text in texts.items():
        (cuda / path).write_text(text)
    found = {
        path.relative_to(cuda).as_posix()
        for path in included([cuda / "x.cu", cuda / "absent.cu"], (cuda, tmp_path), cuda)
    }
    assert found == {"x.cu", "common.cuh", "vendors/cuda.h", "mma.cuh"}
