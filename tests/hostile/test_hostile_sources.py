"""Bad archives and indices: they leave no files behind, and nothing large is unpacked."""

import gzip
import tarfile
import tempfile
from pathlib import Path

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.llama.source import unpack
from tests.llama.build import tree as small
from tests.llama.source.fake_index import FakeIndex, make_sdist

LANDMARK = "thirdparty/llama.cpp/ggml/src/ggml-cuda/fattn.cu"
SPEC, FILE = "pypi:fake==1.0", "fake-1.0.tar.gz"
END, MUCH = bytes(1024), bytes(1 << 24)


def member(name, size=0, above="fake-1.0/", **fields):
    info = tarfile.TarInfo(above + name)
    info.size = size
    for key, value in fields.items():
        setattr(info, key, value)
    return info.tobuf() + bytes(-(-size // 512) * 512 if size < 1 << 26 else 0)


def packed(*data):
    return gzip.compress(b"".join(data), 1)


def whole():
    with tempfile.TemporaryDirectory() as folder:
        make_sdist(Path(folder, FILE))
        return Path(folder, FILE).read_bytes()


TOO_LARGE, LINK, NO_TAR = "would unpack to more than", "link or a device", "not a complete tar archive"
OUTSIDE = "lies outside the folder it unpacks into"
ARCHIVES = {
    "zeros": (lambda: packed(member("zeros", 3 << 30), MUCH), TOO_LARGE),
    "zeros in a file of the tree": (lambda: packed(member(LANDMARK, 3 << 30), MUCH), TOO_LARGE),
    "many members": (lambda: packed(member("x") * 101), "more than 100 members"),
    "negative size": (lambda: packed(member("x")[:124], b"\xff" * 12, member("x")[136:]), FILE),
    "leaves": (lambda: packed(member(LANDMARK, 1), member("../../../../etc/x", 1), END), OUTSIDE),
    "leaves within": (lambda: packed(member(LANDMARK, 1), member(f"{LANDMARK}/{'../' * 7}evil", 1), END), OUTSIDE),
    "absolute": (lambda: packed(member(LANDMARK, 1), member("/tmp/evil", 1, above=""), END), OUTSIDE),
    "link": (lambda: packed(member(LANDMARK, type=tarfile.SYMTYPE, linkname="/etc/passwd"), END), LINK),
    "hard link": (lambda: packed(member(LANDMARK, type=tarfile.LNKTYPE, linkname="/etc/passwd"), END), LINK),
    "fifo": (lambda: packed(member(LANDMARK, type=tarfile.FIFOTYPE), END), LINK),
    "device": (lambda: packed(member(LANDMARK, type=tarfile.CHRTYPE), END), LINK),
    "no tree": (lambda: packed(member("setup.py", 10), END), "no llama.cpp tree"),
    "cut": (lambda: whole()[:-200], NO_TAR),
    "damaged": (lambda: whole()[:40] + b"\xff" * 40 + whole()[80:], NO_TAR),
    "text": (lambda: b"no archive", NO_TAR),
    "empty": (lambda: b"", NO_TAR),
    "a page": (lambda: b"<html>404</html>", NO_TAR),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_archive(name, tmp_path, monkeypatch):
    make, said = ARCHIVES[name]
    monkeypatch.setattr(unpack, "MOST_MEMBERS", 100)
    (tmp_path / FILE).write_bytes(make())
    with pytest.raises(InputError, match=said):
        unpack.unpack(tmp_path / FILE, tmp_path / "tree")
    assert not (tmp_path / "tree").exists() and not list(tmp_path.rglob("evil")), "nothing is left behind"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package index in a folder, without its file yet; it replaces the index of `probe`."""
    folder = tmp_path / "index/fake"
    folder.mkdir(parents=True)
    (folder / "index.html").write_text('<a href="fake-1.0.tar.gz">fake-1.0.tar.gz</a>')
    monkeypatch.setenv("FATTN_PROBE_INDEX", f"file://{folder.parent}")
    return folder


def test_a_bomb_from_an_index_is_one_message_and_leaves_nothing(probe, index, tmp_path):
    (index / FILE).write_bytes(ARCHIVES["zeros"][0]())
    probe("source", "get", SPEC, "--allow-unverified").refused(2, TOO_LARGE)
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"] == []


@pytest.mark.parametrize("name", ["cut", "text", "empty", "no tree", "leaves"])
def test_release(name, probe, index):
    (index / FILE).write_bytes(ARCHIVES[name][0]())
    probe("run", "--source", SPEC, "--on", "sim:h200", "op.yaml").refused(2, "op.yaml")  # the scenario first
    probe("source", "show", SPEC).refused(2, FILE)


PAGES = {
    "no page": (None, 4, "cannot be reached"),
    "empty": (b"", 2, "no sdist"),
    "binary": (bytes(range(256)), 2, "no sdist"),
    "other files": (b'<a href="fake-2.0.tar.gz">x</a>', 2, "2.0"),
    "nowhere": (b'<a href="file:///nowhere/fake-1.0.tar.gz">x</a>', 4, "broke off"),
    "endless": (b'<a href="file:///dev/zero#fake-1.0.tar.gz">x</a>', 2, "no sdist"),
    "scheme": (b'<a href="gopher://x/fake-1.0.tar.gz">x</a>', 4, "gopher"),
    "bad port": (b'<a href="http://x:y/fake-1.0.tar.gz">x</a>', 4, "broke off"),
    "digest": (b'<a href="fake-1.0.tar.gz#sha256=00">x</a>', 2, "sha256"),
}


@pytest.mark.parametrize("name", PAGES)
def test_page(name, probe, index):
    content, code, said = PAGES[name]
    make_sdist(index / FILE)
    (index / "index.html").unlink() if content is None else (index / "index.html").write_bytes(content)
    probe("source", "get", SPEC, "--allow-unverified").refused(code, said)


@pytest.mark.parametrize("url", ["nowhere", "http://", "http://127.0.0.1:1/simple", "http://[", "file:///dev/zero"])
def test_index(url, probe, monkeypatch):
    monkeypatch.setenv("FATTN_PROBE_INDEX", url)
    ended = probe("source", "get", SPEC)
    ended.refused(ended.code)
    assert ended.code in (2, 4)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"files": 5}', b'{"files": [{}]}', b"\xff\xfe"])
def test_a_damaged_answer_is_the_index_s_fault(body, probe, tmp_path, monkeypatch):
    index = FakeIndex(tmp_path)
    monkeypatch.setattr(index, "page", lambda: (body, "application/vnd.pypi.simple.v1+json"))
    monkeypatch.setenv("FATTN_PROBE_INDEX", index.url)
    probe("source", "get", "pypi:xllamacpp==9.9").refused(4, "damaged page")


NEEDED = [
    "ggml/CMakeLists.txt",
    "ggml/src/CMakeLists.txt",
    "ggml/src/ggml-cpu/CMakeLists.txt",
    "ggml/src/ggml.c",
    "ggml/src/ggml-cpu/amx/amx.cpp",
    "ggml/src/ggml-backend-reg.cpp",
    "ggml/src/ggml-cuda/ggml-cuda.cu",
]


@pytest.mark.parametrize("path", NEEDED)
def test_a_tree_with_a_file_missing(path, probe, tmp_path):
    small.make_tree(tmp_path / "llama.cpp")
    (tmp_path / "llama.cpp" / path).unlink()
    ended = probe("build", "--source", "llama.cpp", "--dry-run")
    ended.refused(
        2, f"source '{tmp_path}/llama.cpp': the llama.cpp tree in {tmp_path}/llama.cpp is incomplete: {path} is missing"
    )
    assert len(ended.stderr.strip().splitlines()) == 1
