"""The rewriter on every CUDA file of a release of each era, and of the trees in $FATTN_PROBE_TREES."""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from fattn_probe.llama.build.rewrite import Rewritten, rewrite
from fattn_probe.llama.cxx.tokens import tokenize
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve

STRING = re.compile(r'"[^"]*"')
IDENTIFIER = re.compile(r"[^\W\d]\w*")
OWN_WORDS = """
    simt simt_a SIMT_ARGUMENT SIMT_INTO SIMT_WHOLE int unsigned auto return if const void true false own other
    define describe bounds launch_kernel ptx unknown_ptx divided_by remainder_by reciprocal_of static_shared
    dynamic_shared begin_ahead end_ahead butterfly branch simt_give_back simt_hand_out size size_t
    __PRETTY_FUNCTION__ __FILE__ __LINE__ GCC
"""
WRITTEN = frozenset(OWN_WORDS.split())
CUDA_ONLY = ("__launch_bounds__", "__shared__", "<<<", "asm(", "asm volatile", "#pragma unroll")


NAMED = [name for name in os.environ.get("FATTN_PROBE_TREES", "").split(os.pathsep) if name]
EARLIER = ("0.2.8", "0.2.12", "2026.4.8672")
TREES = [
    pytest.param(DEFAULT_SOURCE, marks=pytest.mark.network),
    *(pytest.param(f"pypi:xllamacpp=={name}", marks=[pytest.mark.network, pytest.mark.night]) for name in EARLIER),
    *NAMED,
]


@dataclass(frozen=True)
class File:
    """A CUDA file, its text, and the rewritten text."""

    path: Path
    text: str
    result: Rewritten


@dataclass(frozen=True)
class Corpus:
    """The CUDA files of a tree, and the CPU seconds that rewriting them took."""

    files: list[File]
    seconds: float


@pytest.fixture(params=TREES, scope="module")
def corpus(request: pytest.FixtureRequest) -> Corpus:
    paths = sorted((resolve(request.param).root / "ggml/src/ggml-cuda").rglob("*.cu*"))
    texts = [path.read_text() for path in paths]
    start = time.process_time()
    results = [rewrite(text, str(path), frozenset()) for path, text in zip(paths, texts, strict=True)]
    seconds = time.process_time() - start
    return Corpus([File(*file) for file in zip(paths, texts, results, strict=True)], seconds)


def code(text: str) -> list[str]:
    """The lines of a text without its comments."""
    return "".join("\n" * t.text.count("\n") if t.kind == "comment" else t.text for t in tokenize(text)).split("\n")


BODY = re.compile(
    r"namespace simt_body \{ [^;{]*; \} | simt_body::\w+(?:<[^>]*>)?\([^)]*\); \} namespace simt_body \{ [^{]*\{"
)
"""The declaration of a kernel's body, and the end of the kernel, which calls it, with the beginning of the body."""
ONCE = re.compile(
    r"template<[^;{]*> \[\[gnu::noinline\]\][^;{]*; | return simt_once_\w+<[^;]*\); \} template<[^{]*\{|\bsimt_once_"
)
"""The same for a template's body that has flags as arguments, and how its name begins where it is called."""
FLAG = re.compile(r"const bool (\w+)")


def test_tokens_joined_are_the_file(corpus):
    for file in corpus.files:
        tokens = tokenize(file.text)
        assert "".join(token.text for token in tokens) == file.text, file.path
        assert not [token for token in tokens if token.kind == "other"], file.path


def test_every_token_stays_on_its_line(corpus):
    for file in corpus.files:
        before, after = code(file.text), code(file.result.text)
        assert len(before) == len(after), file.path
        bounds = [line for line in file.text.split("\n") if "__launch_bounds__" in line]  # which move into the bodies
        once = FLAG.findall(" ".join(ONCE.findall(file.result.text)))
        moved = WRITTEN.union(IDENTIFIER.findall(" ".join(bounds)), once)
        copied: set[str] = set()
        for number, (old, line) in enumerate(zip(before, after, strict=True), start=1):
            new = ONCE.sub("", BODY.sub("", line))
            if "simt_is_product_" in new or "SIMT_IS_CONSTANT" in new:  # copies conditions from other lines
                copied = set(IDENTIFIER.findall(new))
                assert set(IDENTIFIER.findall(old)) <= copied, f"{file.path}:{number}: {new}"
                continue
            added = set(IDENTIFIER.findall(STRING.sub("", new))) - set(IDENTIFIER.findall(old)) - moved
            added, copied = added - copied, set()  # a sum may end on the next line
            strangers = {name for name in added if f"__{name}" not in old and not name.startswith("simt_bounds_")}
            assert not strangers, f"{file.path}:{number}: {new}"


def test_the_rewritten_code_has_no_cuda_syntax_left_and_every_global_function_is_a_kernel(corpus):
    for file in corpus.files:
        lines = code(file.result.text)
        assert not [line for line in lines if any(mark in line for mark in CUDA_ONLY)], file.path
    for file in corpus.files:
        assert len(file.result.kernels) == sum(line.count("__global__") for line in code(file.text)), file.path
    assert corpus.seconds < 60


def test_files_without_cuda_syntax_are_untouched_and_attention_kernels_have_their_parameters(corpus):
    words = re.compile(r"__global__|__device__|__launch_bounds__|__shared__|<<<|\basm\b|#\s*pragma\s+unroll")
    plain = [file for file in corpus.files if not words.search(file.text)]
    assert plain
    assert [file.path for file in plain if file.result.text != file.text] == []
    file = next(file for file in corpus.files if file.path.name == "fattn-mma-f16.cuh")
    (kernel,) = file.result.kernels
    assert kernel.name == "flash_attn_ext_f16"
    assert kernel.template_parameters[:4] == ("DKQ", "DV", "ncols1", "ncols2")
