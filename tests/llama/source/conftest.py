"""Every test has its own cache; `index` is a local package index."""

from pathlib import Path

import pytest

from tests.llama.source.fake_index import FakeIndex, write_tree


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FATTN_PROBE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path, monkeypatch):
    (tmp_path / "files").mkdir()
    fake = FakeIndex(tmp_path / "files")
    monkeypatch.setenv("FATTN_PROBE_INDEX", fake.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield fake
    fake.server.shutdown()
    fake.server.server_close()


@pytest.fixture
def tree_folder(tmp_path) -> Path:
    return write_tree(tmp_path / "llama.cpp")


@pytest.fixture
def pypi(tmp_path_factory, monkeypatch):
    """The real index, with one cache for all tests that use it."""
    monkeypatch.delenv("FATTN_PROBE_INDEX", raising=False)
    monkeypatch.setenv("FATTN_PROBE_CACHE", str(tmp_path_factory.getbasetemp() / "pypi-cache"))
