"""Builds in the cache: damaged files are made again, a finished one needs no compiler, and `prune` removes old ones."""

import errno
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from fattn_probe.base.cache import Growth, lock_beside, part
from fattn_probe.base.errors import BuildError, MachineError
from fattn_probe.llama.build import BuildRequest, ensure, make, toolchain
from fattn_probe.llama.build.ninja import run_ninja
from fattn_probe.llama.build.storage import prune, read_storage
from tests.as_user import fattn_probe
from tests.llama.build.tree import make_tree

OUTPUTS = ("bin/fattn-runner", "lib/libggml-cuda.so", "obj/cuda/fattn.cu.o")


@pytest.fixture
def request_(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(toolchain, "cached_headers", lambda headers: headers.include)
    return BuildRequest(make_tree(tmp_path))


@pytest.fixture
def made(monkeypatch):
    """What each build made: the outputs that were missing, as ninja makes them."""
    found = []

    def ninja(growth, targets=(), **words):
        if targets:  # the objects first; a program may run until they are linked
            return
        missing = [name for name in OUTPUTS if not (growth.folder / name).is_file()]
        for name in missing:
            growth.write(name, f"what is in {name}")
        found.append(missing)

    monkeypatch.setattr(make, "run_ninja", ninja)
    return found


@pytest.mark.parametrize("name", ["bin/fattn-runner", "lib/libggml-cuda.so"])
@pytest.mark.parametrize("damage", [lambda path: os.truncate(path, 5), Path.unlink, lambda path: path.write_text("W")])
def test_a_damaged_program_is_made_again_with_one_line(request_, made, caplog, name, damage):
    folder = ensure(request_).folder
    ensure(request_)
    assert (made, caplog.messages) == ([list(OUTPUTS)], [])
    damage(folder / name)
    ensure(request_)
    assert made[1:] == [[name]]
    assert (folder / name).read_text() == f"what is in {name}"
    assert caplog.messages == [f"{folder}: the build is damaged ({name}): recreating it"]
    ensure(request_)
    assert len(made) == 2


def test_a_new_build_removes_those_of_another_fattn_probe_that_a_week_has_not_used(request_, made, monkeypatch):
    folders = []
    for stamp in ("one", "two", "three"):
        monkeypatch.setattr("fattn_probe.llama.build.key.own_stamp", lambda stamp=stamp: stamp)
        folders.append(ensure(request_).folder)
        assert folders[0].is_dir()
        if stamp == "two":
            os.utime(folders[0] / "seal.json", (time.time() - 6.9 * 86400,) * 2)
            ensure(request_, programs=["fattn-runner-cpu"])
    os.utime(folders[0] / "seal.json", (time.time() - 7.1 * 86400,) * 2)
    monkeypatch.setattr("fattn_probe.llama.build.key.own_stamp", lambda: "four")
    folders.append(ensure(request_).folder)
    assert [folder.is_dir() for folder in folders] == [False, True, True, True]


def test_a_damaged_object_is_made_again_before_it_is_linked(request_, made):
    os.truncate(ensure(request_).folder / OUTPUTS[2], 5)
    ensure(request_)
    assert len(made) == 1
    ensure(request_, programs=["fattn-runner", "fattn-runner-cpu"])
    assert made[1:] == [[OUTPUTS[2]]]


@pytest.mark.parametrize("name", ["seal.json", "manifest.json", "overlay/ggml/src/ggml-cuda/fattn.cu"])
def test_a_damaged_record_or_source_is_made_again(request_, made, name):
    folder = ensure(request_).folder
    before = (folder / name).read_text()
    os.truncate(folder / name, 5)
    build = ensure(request_)
    assert len(made) == 2
    if name.startswith("overlay"):
        assert (folder / name).read_text() == before
    assert build.runner.read_text() == f"what is in {OUTPUTS[0]}"
    ensure(request_)
    assert len(made) == 2


@pytest.mark.parametrize("name", [*OUTPUTS, "overlay/ggml/src/ggml-cuda/fattn.cu"])
def test_what_is_damaged_while_a_build_is_extended_is_not_used(request_, made, monkeypatch, name):
    folder, more = ensure(request_).folder, ["fattn-runner", "fattn-runner-cpu"]
    whole = (folder / name).read_text()

    def linked_meanwhile(growth, **words):
        os.truncate(folder / name, 5)
        growth.write("lib/new.so", "of a damaged object")

    with monkeypatch.context() as patch, pytest.raises(MachineError, match=rf"extended \({name}\): run this again"):
        patch.setattr(make, "run_ninja", linked_meanwhile)
        ensure(request_, programs=more)
    ensure(request_, programs=more)
    assert (folder / name).read_text() == whole
    assert not (folder / "lib/new.so").exists()


def test_what_a_failed_link_leaves_is_not_run(request_, made, monkeypatch):
    folder = ensure(request_).folder

    def fails(*rest, **words):
        (folder / OUTPUTS[1]).write_text("half")
        raise BuildError("no")

    with monkeypatch.context() as patch:
        patch.setattr(make, "run_ninja", fails)
        with pytest.raises(BuildError):
            ensure(request_, programs=["fattn-runner", "fattn-runner-cpu"])
    ensure(request_)
    assert (folder / OUTPUTS[1]).read_text() == f"what is in {OUTPUTS[1]}"


def test_a_finished_build_needs_no_compiler(request_, made, monkeypatch, tmp_path):
    def missing(engine):
        raise BuildError("g++ is not installed")

    folder = ensure(request_).folder
    monkeypatch.setattr(sys.modules[ensure.__module__], "find_toolchain", missing)
    assert ensure(request_).folder == folder
    for refused in ({"full": True}, {"again": True}, {"programs": ["test-backend-ops"]}):
        with pytest.raises(BuildError, match=r"g\+\+ is not installed"):
            ensure(request_, **refused)
    with pytest.raises(BuildError):
        ensure(BuildRequest(request_.tree, flavour="debug"))
    os.truncate(folder / OUTPUTS[0], 5)
    with pytest.raises(BuildError):
        ensure(request_)


def test_a_finished_build_in_a_cache_that_cannot_be_written(request_, made, monkeypatch):
    folder = ensure(request_).folder

    def refuse(path, *rest, **options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    for name in ("utime", "mkdir", "replace", "rename"):
        monkeypatch.setattr(os, name, refuse)
    assert ensure(request_).folder == folder
    with pytest.raises(MachineError, match="Read-only file system"):
        ensure(request_, programs=["fattn-runner", "fattn-runner-cpu"])


def test_a_compiler_that_finds_the_disk_full_is_one_sentence(tmp_path):
    rule = 'rule fail\n  command = echo "as: x.o: No space left on device" >&2; exit 1\nbuild x.o: fail\n'
    (tmp_path / "build.ninja").write_text(rule)
    with pytest.raises(MachineError, match=r"^.*: x\.o cannot be built: No space left on device$"):
        run_ninja(Growth(tmp_path))


@contextmanager
def mounted(folder, *words):
    """Within, `mount WORDS FOLDER` holds; skips the test where nothing can be mounted."""
    folder.mkdir(exist_ok=True)
    if subprocess.run(["mount", *words, folder], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_read_only_file_system_serves_what_it_has(request_, made, tmp_path):
    folder, cache = ensure(request_).folder, tmp_path / "cache"
    with mounted(cache, "--bind", cache):
        subprocess.run(["mount", "-o", "remount,ro,bind", cache], check=True)
        with lock_beside(folder):
            assert ensure(request_).folder == folder
        with pytest.raises(MachineError, match="cannot be written: Read-only file system"):
            ensure(request_, programs=["fattn-runner", "fattn-runner-cpu"])
    assert len(made) == 1


def test_a_disk_that_fills_up_while_headers_are_copied(tmp_path, monkeypatch):
    """The message had 280 KB: a list of all copies that failed, from shutil.copytree."""
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=6m", "tmpfs") as disk:
        monkeypatch.setenv("FATTN_PROBE_CACHE", str(disk))
        done = fattn_probe("build", "--source", make_tree(tmp_path).root, code=3)
        assert "cannot be written: No space left on device" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert list((disk / "parts").iterdir()) == []


DAY = 86400


@pytest.fixture
def stored(tmp_path, monkeypatch):
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


def test_each_part_is_measured(stored):
    storage = read_storage()
    assert [(entry.name, entry.size, entry.days and round(entry.days)) for entry in storage.builds] == [
        ("new", 1000, 0),
        ("old", 1000, 40),
        ("broken", 1000, None),
    ]
    assert [(entry.name, entry.size) for entry in storage.sources] == [("llama", 500)]
    assert storage.other == 70


def test_old_and_unfinished_builds_go(stored):
    (stored / "rewritten").mkdir()
    for name, days in (("recent", 1), ("old", 40)):
        (stored / "rewritten" / name).touch()
        os.utime(stored / "rewritten" / name, (time.time() - days * DAY,) * 2)
    assert [entry.name for entry in prune(30)] == ["old", "broken"]
    assert sorted(path.name for path in (stored / "builds").iterdir()) == ["new", "new.lock"]
    assert (stored / "sources/llama/ggml.c").exists()
    assert [path.name for path in (stored / "rewritten").iterdir()] == ["recent"]


def test_a_build_that_is_being_changed_stays(stored):
    with lock_beside(stored / "builds/old"):
        assert [entry.name for entry in prune(30)] == ["broken"]
    assert (stored / "builds/old/lib.so").exists()


def test_what_killed_processes_and_earlier_versions_left_goes(stored):
    theirs, earlier = stored / "parts/theirs", stored / "headers-13.0"
    for folder in (theirs, earlier):
        folder.mkdir(parents=True)
        (folder / "x").touch()
    (stored / "parts/theirs.lock").touch()
    (stored / "dispatch").mkdir()
    (stored / "dispatch/x.pickle").touch()
    with part() as alive:
        assert [entry.name for entry in prune(30)] == ["old", "broken"]
        assert alive.is_dir()
    assert list((stored / "parts").iterdir()) == list((stored / "dispatch").iterdir()) == []
    assert not earlier.exists() and (stored / "headers/1/cuda.h").exists()


def test_the_command(stored):
    def probe(*words):
        return fattn_probe("cache", *words).stdout

    assert "never finished" in probe("show")
    assert json.loads(probe("show", "--json"))["other"] == 70
    assert "removed 2 builds" in probe("prune")
    assert probe("prune").strip() == "nothing to remove"
    assert [entry["name"] for entry in json.loads(probe("prune", "--days", "0", "--json"))] == ["new"]
