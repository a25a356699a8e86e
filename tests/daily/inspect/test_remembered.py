"""The dispatch in the cache: the same as when it is read, and read again when anything has changed."""

from pathlib import Path

import pytest

from fattn_probe.daily.inspect.dispatch import decide
from fattn_probe.daily.inspect.dispatch.decide import digest_of
from fattn_probe.llama.source.features import CUDA

remembered_dispatch = decide.remembered_dispatch.__wrapped__  # without what this process has in memory

SOURCE = """
enum best_kernel { NONE = 0, VEC = 1 };
static best_kernel choose(const ggml_tensor * dst) {
    if (dst->ne[1] == 1) {
        return VEC;
    }
    return NONE;
}
void ggml_cuda_flash_attn_ext(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    choose(dst);
}
"""


@pytest.fixture
def root(cache, tmp_path):
    """A tree with one file, an empty cache, and `reads`, the trees that were read."""
    folder = tmp_path / "tree"
    (folder / CUDA).mkdir(parents=True)
    (folder / CUDA / "fattn.cu").write_text(SOURCE)
    return folder


@pytest.fixture
def reads(monkeypatch):
    made = []
    read = decide.read_dispatch

    def noted(folder):
        made.append(folder)
        return read(folder)

    monkeypatch.setattr(decide, "read_dispatch", noted)
    return made


def test_a_dispatch_is_read_once_and_again_if_its_source_changes(root, reads):
    first, second = remembered_dispatch(root), remembered_dispatch(root)
    assert first == second == decide.dispatch_of({"fattn.cu": SOURCE}, {})
    assert [condition.text for condition in second.conditions][:1] == ["dst->ne[1] == 1"]
    assert len(reads) == 1
    remembered_dispatch(root)
    (root / CUDA / "fattn.cu").write_text(SOURCE.replace("== 1)", "== 2)"))
    assert remembered_dispatch(root).conditions[0].text == "dst->ne[1] == 2"
    assert len(reads) == 2


def test_the_code_that_reads_is_part_of_the_key(root, monkeypatch):
    """Since the package was moved into districts, the key had the source alone."""
    read, read_bytes = [], Path.read_bytes

    def noted(path):
        read.append(path.name)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", noted)
    digest_of(root)
    assert {"fattn.cu", "decide.py", "extract.py", "expressions.py", "statements.py"} <= set(read)
