"""The dispatch in the cache: the same as when it is read, and read again when anything has changed."""

from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from fattn_probe.daily.inspect.dispatch import decide
from fattn_probe.daily.inspect.dispatch.decide import digest_of, remembered_dispatch
from fattn_probe.llama.source.features import CUDA

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
    """A tree with one file, and an empty cache."""
    folder = tmp_path / "tree"
    (folder / CUDA).mkdir(parents=True)
    (folder / CUDA / "fattn.cu").write_text(SOURCE)
    return folder


@pytest.fixture
def reads(monkeypatch):
    """Is called with each tree that is read."""
    noted = Mock(side_effect=decide.read_dispatch)
    monkeypatch.setattr(decide, "read_dispatch", noted)
    return noted


def test_a_dispatch_is_read_once_and_again_if_its_source_changes(root, reads):
    first, second = remembered_dispatch(root), remembered_dispatch(root)
    assert first == second == decide.dispatch_of({"fattn.cu": SOURCE}, {})
    assert [condition.text for condition in second.conditions][:1] == ["dst->ne[1] == 1"]
    assert reads.call_count == 1
    remembered_dispatch(root)
    (root / CUDA / "fattn.cu").write_text(SOURCE.replace("== 1)", "== 2)"))
    assert remembered_dispatch(root).conditions[0].text == "dst->ne[1] == 2"
    assert reads.call_count == 2


def test_the_code_that_reads_is_part_of_the_key(root):
    """Since the package was moved into districts, the key had the source alone."""
    with patch.object(Path, "read_bytes", autospec=True, side_effect=Path.read_bytes) as read:
        digest_of(root)
    names = {path.name for (path,), _ in read.call_args_list}
    assert {"fattn.cu", "decide.py", "extract.py", "expressions.py", "statements.py"} <= names
