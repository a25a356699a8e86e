"""The dispatch in the cache: the same as when it is read, and read again when anything has changed."""

from pathlib import Path

import pytest

from fattn_probe.base.cache import write_document
from fattn_probe.daily.inspect.dispatch import conditions
from fattn_probe.daily.inspect.dispatch.conditions import DISPATCH, digest_of, remembered_dispatch
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
def root(tmp_path, monkeypatch):
    """A tree with one file, an empty cache, and `reads`, the trees that were read."""
    monkeypatch.setenv("FATTN_PROBE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "tree"
    (folder / CUDA).mkdir(parents=True)
    (folder / CUDA / "fattn.cu").write_text(SOURCE)
    return folder


@pytest.fixture
def reads(monkeypatch):
    made = []
    read = conditions.read_dispatch

    def noted(folder):
        made.append(folder)
        return read(folder)

    monkeypatch.setattr(conditions, "read_dispatch", noted)
    return made


def test_a_dispatch_is_read_once(root, reads):
    first, second = remembered_dispatch(root), remembered_dispatch(root)
    assert first == second == conditions.dispatch_of({"fattn.cu": SOURCE}, {})
    assert [condition.text for condition in second.conditions][:1] == ["dst->ne[1] == 1"]
    assert len(reads) == 1


def test_a_changed_source_is_read_again(root, reads):
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
    assert {"fattn.cu", "conditions.py", "extract.py", "logic.py", "statements.py"} <= set(read)


DAMAGES = {
    "empty": lambda whole: b"",
    "text": lambda whole: b"no document",
    "cut": lambda whole: whole[:-20],
    "one byte": lambda whole: whole.replace(b"ne[1] == 1", b"ne[1] == 2"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_replaced(root, reads, tmp_path, damage):
    found = remembered_dispatch(root)
    (file,) = (tmp_path / "cache/dispatch").iterdir()
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    assert [remembered_dispatch(root), remembered_dispatch(root)] == [found, found]
    assert len(reads) == 2


def test_a_document_of_other_keys_is_replaced(root, reads):
    found = remembered_dispatch(root)
    write_document(DISPATCH, digest_of(root), b'{"functions": 1}')
    assert remembered_dispatch(root) == found
    assert len(reads) == 2


def test_a_cache_that_cannot_be_written(root, reads, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/dispatch").write_text("a file")
    assert remembered_dispatch(root) == remembered_dispatch(root)
    assert len(reads) == 2
