"""`fattn-probe cache`: what takes space, and what `prune` removes."""

import json
import os
import time

import pytest

from fattn_probe.base.cache import lock_beside, part
from fattn_probe.llama.build.storage import prune, read_storage
from tests.as_user import fattn_probe

DAY = 86400


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with a build of today, one of 40 days ago, one that was never finished, and a source."""
    monkeypatch.setenv("FATTN_PROBE_CACHE", str(tmp_path))
    monkeypatch.delenv("CCACHE_DIR", raising=False)
    for name, days in (("new", 0), ("old", 40), ("broken", None)):
        folder = tmp_path / "builds" / name
        folder.mkdir(parents=True)
        (folder / "lib.so").write_bytes(bytes(1000))
        folder.with_name(f"{name}.lock").touch()
        if days is not None:
            (folder / "seal.json").touch()
            os.utime(folder / "seal.json", (time.time() - days * DAY,) * 2)
    (tmp_path / "sources/llama").mkdir(parents=True)
    (tmp_path / "sources/llama/ggml.c").write_bytes(bytes(500))
    (tmp_path / "sources/llama.lock").touch()
    (tmp_path / "headers/1").mkdir(parents=True)
    (tmp_path / "headers/1/cuda.h").write_bytes(bytes(70))
    return tmp_path


def test_each_part_is_measured(cache):
    storage = read_storage()
    assert [(entry.name, entry.size, entry.days and round(entry.days)) for entry in storage.builds] == [
        ("new", 1000, 0),
        ("old", 1000, 40),
        ("broken", 1000, None),
    ]
    assert [(entry.name, entry.size) for entry in storage.sources] == [("llama", 500)]
    assert storage.other == 70


def test_old_and_unfinished_builds_go(cache):
    (cache / "rewritten").mkdir()
    for name, days in (("recent", 1), ("old", 40)):
        (cache / "rewritten" / name).touch()
        os.utime(cache / "rewritten" / name, (time.time() - days * DAY,) * 2)
    assert [entry.name for entry in prune(30)] == ["old", "broken"]
    assert sorted(path.name for path in (cache / "builds").iterdir()) == ["new", "new.lock"]
    assert (cache / "sources/llama/ggml.c").exists()
    assert [path.name for path in (cache / "rewritten").iterdir()] == ["recent"]


def test_a_build_that_is_being_changed_stays(cache):
    with lock_beside(cache / "builds/old"):
        assert [entry.name for entry in prune(30)] == ["broken"]
    assert (cache / "builds/old/lib.so").exists()


def test_what_killed_processes_and_earlier_versions_left_goes(cache):
    theirs, earlier = cache / "parts/theirs", cache / "headers-13.0"
    for folder in (theirs, earlier):
        folder.mkdir(parents=True)
        (folder / "x").touch()
    (cache / "parts/theirs.lock").touch()
    (cache / "dispatch").mkdir()
    (cache / "dispatch/x.pickle").touch()
    with part() as alive:
        assert [entry.name for entry in prune(30)] == ["old", "broken"]
        assert alive.is_dir()
    assert list((cache / "parts").iterdir()) == list((cache / "dispatch").iterdir()) == []
    assert not earlier.exists() and (cache / "headers/1/cuda.h").exists()


def test_the_command(cache):
    def probe(*words):
        return fattn_probe("cache", *words).stdout

    assert "never finished" in probe("show")
    assert json.loads(probe("show", "--json"))["other"] == 70
    assert "removed 2 builds" in probe("prune")
    assert probe("prune").strip() == "nothing to remove"
    assert [entry["name"] for entry in json.loads(probe("prune", "--days", "0", "--json"))] == ["new"]
