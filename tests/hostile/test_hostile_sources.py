"""Bad archives and indices: they leave no files behind, and nothing large is unpacked."""

import gzip
import tarfile

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.llama.source import unpack
from tests.llama.build import tree as small
from tests.llama.source.fake_index import FakeIndex, make_sdist

LANDMARK = "thirdparty/llama.cpp/ggml/src/ggml-cuda/fattn.cu"
SPEC = "pypi:fake==1.0"


def member(name, size=0, **fields):
    info = tarfile.TarInfo(f"fake-1.0/{name}")
    info.size = size
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def archive(path, *members, tail=b""):
    """A .tar.gz with members of zeros, and the bytes after the last header."""
    with gzip.open(path, "wb", compresslevel=1) as packed:
        for info in members:
            packed.write(info.tobuf())
            if info.isfile() and info.size < 1 << 26:
                packed.write(bytes(-(-info.size // 512) * 512))
        packed.write(tail)


def zeros(path):
    archive(path, member("zeros", 3 << 30), tail=bytes(1 << 24))


def kept_zeros(path):
    archive(path, member(LANDMARK, 3 << 30), tail=bytes(1 << 24))


def many_members(path):
    data = member("x").tobuf() * 1000
    with gzip.open(path, "wb", compresslevel=1) as packed:
        for _ in range(101):
            packed.write(data)


def negative_size(path):
    header = bytearray(member("x").tobuf())
    header[124:136] = b"\xff" * 12
    archive(path, tail=bytes(header))


def leaves(path):
    archive(path, member(LANDMARK, 1), member("../../../../etc/x", 1), tail=bytes(1024))


def link(path):
    archive(path, member(LANDMARK, type=tarfile.SYMTYPE, linkname="/etc/passwd"), tail=bytes(1024))


def device(path):
    archive(path, member(LANDMARK, type=tarfile.CHRTYPE), tail=bytes(1024))


def no_tree(path):
    archive(path, member("setup.py", 10), tail=bytes(1024))


def cut(path):
    make_sdist(path)
    path.write_bytes(path.read_bytes()[:-200])


def damaged(path):
    make_sdist(path)
    data = bytearray(path.read_bytes())
    data[40:80] = b"\xff" * 40
    path.write_bytes(bytes(data))


def text(path):
    path.write_text("no archive")


def empty(path):
    path.write_bytes(b"")


def a_page(path):
    path.write_text("<html>404</html>")


BAD = {
    zeros: "would unpack to more than",
    kept_zeros: "would unpack to more than",
    many_members: "members",
    negative_size: "fake-1.0.tar.gz",
    leaves: "lies outside the folder it unpacks into",
    link: "link or a device",
    device: "link or a device",
    no_tree: "no llama.cpp tree",
    cut: "not a whole tar archive",
    damaged: "not a whole tar archive",
    text: "not a whole tar archive",
    empty: "not a whole tar archive",
    a_page: "not a whole tar archive",
}


@pytest.mark.parametrize("spoil", BAD, ids=lambda spoil: spoil.__name__)
def test_archive(spoil, tmp_path, monkeypatch):
    path = tmp_path / "fake-1.0.tar.gz"
    spoil(path)
    with pytest.raises(InputError, match=BAD[spoil]):
        unpack.unpack(path, tmp_path / "tree")
    assert not (tmp_path / "tree").exists(), "nothing is left behind"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package index in a folder, without its file yet; it replaces the index of `probe`."""
    folder = tmp_path / "index/fake"
    folder.mkdir(parents=True)
    (folder / "index.html").write_text('<a href="fake-1.0.tar.gz">fake-1.0.tar.gz</a>')
    monkeypatch.setenv("FATTN_PROBE_INDEX", f"file://{folder.parent}")
    return folder


def test_a_bomb_from_an_index_is_one_message_and_leaves_nothing(probe, index, tmp_path):
    zeros(index / "fake-1.0.tar.gz")
    probe("source", "get", SPEC, "--allow-unverified").refused(2, "would unpack to more than")
    left = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert left == []


@pytest.mark.parametrize("spoil", [cut, text, empty, no_tree, leaves], ids=lambda spoil: spoil.__name__)
def test_release(spoil, probe, index):
    spoil(index / "fake-1.0.tar.gz")
    probe("run", "--source", SPEC, "--on", "sim:h200", "op.yaml").refused(2, "op.yaml")  # the scenario first
    probe("source", "show", SPEC).refused(2, "fake-1.0.tar.gz")


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
    make_sdist(index / "fake-1.0.tar.gz")
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
    ended.refused(2, f"source 'llama.cpp': the llama.cpp tree in {tmp_path}/llama.cpp is not whole: {path} is missing")
    assert len(ended.stderr.strip().splitlines()) == 1
