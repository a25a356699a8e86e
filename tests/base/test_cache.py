"""The cache: things are made once and published whole; what is damaged is made again, and a kill leaves nothing."""

import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from fattn_probe.base import cache as caches
from fattn_probe.base import digest as seals
from fattn_probe.base.cache import Kind, get_or_make, growing, lock_beside, part, read_document, tended, write_document
from fattn_probe.base.digest import SEEN, hexdigest, read_seal
from fattn_probe.base.errors import MachineError

KIND = Kind("things", "the thing")


@pytest.fixture
def made():
    """The folders that were filled."""
    return []


@pytest.fixture
def get(cache, made):
    """Get a folder with two files."""

    def make(folder):
        made.append(folder)
        (folder / "deep").mkdir()
        (folder / "a").write_text("some bytes")
        (folder / "deep/b").write_text("more bytes")

    return lambda key="one": get_or_make(KIND, key, make)


def in_place(path, text):
    """Change a file's content, but not its size, inode, or time of change."""
    before = path.stat()
    with path.open("r+") as file:
        file.write(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


DAMAGES = {
    "truncated": lambda folder: os.truncate(folder / "deep/b", 4),
    "grown": lambda folder: (folder / "a").write_text("some bytes!"),
    "other bytes": lambda folder: in_place(folder / "a", "same"),
    "missing": lambda folder: (folder / "a").unlink(),
    "seal cut": lambda folder: os.truncate(folder / "seal.json", 20),
    "seal missing": lambda folder: (folder / "seal.json").unlink(),
    "seal of another": lambda folder: (folder / "seal.json").write_text(
        '{"files": {"../x": [1, ""]}, "unfinished": 0}'
    ),
    "seen": lambda folder: [(folder / name).write_text("{") for name in (SEEN, "a")],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_made_again_with_one_line(get, made, damage, caplog):
    folder = get()
    assert (get(), len(made), caplog.messages) == (folder, 1, [])
    DAMAGES[damage](folder)
    assert get() == folder
    assert ((folder / "a").read_text(), (folder / "deep/b").read_text(), len(made)) == ("some bytes", "more bytes", 2)
    (line,) = caplog.messages
    assert line.startswith(f"{folder}: the thing ") and line.endswith(": recreating it")
    assert (get(), len(made)) == (folder, 2)


def test_bytes_that_change_without_a_trace_are_found_within_a_day(get, made, monkeypatch, caplog):
    """A disk's fault."""
    monkeypatch.setattr(seals, "status_of", lambda path: (Path(path).stat().st_size, 0, 0, 0))
    folder, now = get(), time.time()
    in_place(folder / "a", "same")
    assert (get(), len(made)) == (folder, 1)
    monkeypatch.setattr(time, "time", lambda: now + seals.DAY)
    get()
    assert (len(made), (folder / "a").read_text()) == (2, "some bytes")


def test_a_file_is_hashed_once_and_again_if_its_status_changes(get, monkeypatch):
    folder, hashed = get(), []

    def noted(data):
        hashed.append(hexdigest(data))
        return hashed[-1]

    monkeypatch.setattr(seals, "hexdigest", noted)
    get(), get()
    assert hashed == []
    (folder / "a").touch()
    get(), get()
    assert len(hashed) == 1


KILLED = """
import os, signal, sys
from fattn_probe.base.cache import Kind, get_or_make
def make(folder):
    (folder / "a").write_bytes(bytes(1 << 20))
    os.kill(os.getpid(), signal.SIGKILL)
get_or_make(Kind("things", "the thing"), sys.argv[1], make)
"""


@pytest.mark.parametrize("there", [False, True], ids=["made", "used"])
def test_what_a_kill_left_goes_when_anything_else_is_made_or_used(get, cache, there):
    if there:
        get("another")
    assert subprocess.run([sys.executable, "-c", KILLED, "one"], check=False).returncode == -signal.SIGKILL
    assert [path.stat().st_size for path in (cache / "parts").rglob("a")] == [1 << 20]
    get("another")
    assert list((cache / "parts").iterdir()) == []
    assert not (cache / "things/one").exists()


def test_what_another_process_makes_is_not_swept(get, cache):
    with part() as theirs:
        (theirs / "x").touch()
        get()
        assert (theirs / "x").exists()
    assert list((cache / "parts").iterdir()) == []


def test_a_relative_path_is_that_of_the_folder_where_the_command_starts(tmp_path, monkeypatch):
    """gdb, which runs in another folder, could not load a program."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FATTN_PROBE_CACHE", "cache")
    assert caches.cache_dir() == tmp_path / "cache"


def fill_disk(folder):
    (folder / "a").write_bytes(bytes(3 << 20))


@contextmanager
def limited_files():
    """Files may have 1 MiB, which stands in for a full disk where no file system can be mounted."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_nothing(cache):
    with limited_files(), pytest.raises(MachineError, match="things/one: cannot be written: File too large"):
        get_or_make(KIND, "one", fill_disk)
    with (
        limited_files(),
        pytest.raises(MachineError, match="grown: cannot be written: File too large"),
        growing(cache / "grown", "the thing", lambda name: False),
    ):
        fill_disk(cache / "grown")
    assert list((cache / "parts").iterdir()) == []
    assert not (cache / "things/one").exists()


@pytest.fixture
def refused(monkeypatch):
    """The system refuses to open a file for writing, and to make one, with an error."""

    def refuse(number):
        def opened(path, flags, *rest, open_=os.open, **options):
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                raise OSError(number, os.strerror(number), str(path))
            return open_(path, flags, *rest, **options)

        monkeypatch.setattr(os, "open", opened)

    return refuse


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_cache_that_cannot_be_written_serves_what_it_has(get, made, refused, number):
    folder = get()
    refused(number)
    with lock_beside(folder):
        assert get() == folder
    with pytest.raises(MachineError, match="cannot be written"):
        get("another")
    assert len(made) == 1


def test_a_folder_that_grows_loses_only_what_is_damaged(cache, caplog):
    folder = cache / "grown"
    with lock_beside(folder), growing(folder, "the thing", lambda name: name == "log") as growth:
        for name in ("a", "b", "c", "log"):
            growth.write(name, name)
    (folder / "b").write_text("B")
    (folder / "log").write_text("more")
    (folder / "a").unlink()
    (folder / "a").mkdir()
    with growing(folder, "the thing", lambda name: name == "log"):
        assert caplog.messages == [f"{folder}: the thing is damaged (a and 1 more): recreating it"]
        assert {path.name for path in folder.iterdir()} == {"c", "log", "seal.json", SEEN}
    (folder / "log").unlink()
    (folder / "log").mkdir()
    with growing(folder, "the thing", lambda name: name == "log"):
        assert {path.name for path in folder.iterdir()} == {"c", "seal.json", SEEN}
    (folder / "seal.json").write_text("")
    with growing(folder, "the thing", lambda name: name == "log"):
        assert {path.name for path in folder.iterdir()} == {"seal.json"}
    assert caplog.messages[1:] == [f"{folder}: the thing has no record of its contents: recreating it"]


def test_after_an_interrupted_change_nothing_is_called_damaged(cache, caplog):
    folder = cache / "grown"
    with growing(folder, "the thing", lambda name: False) as growth:
        growth.write("a", "a")
        growth.write("b", "b")
    with pytest.raises(KeyboardInterrupt), growing(folder, "the thing", lambda name: False) as growth:
        growth.write("a", "half")
        growth.write("new", "new")
        (folder / "unknown").write_text("of a program that was killed")
        (folder / ".x-00.part").write_text("of a kill")
        raise KeyboardInterrupt
    sealed = read_seal(folder)
    assert sealed and sealed.unfinished
    with growing(folder, "the thing", lambda name: False):
        assert caplog.messages == []
        assert {path.name for path in folder.iterdir()} == {"b", "new", "seal.json", SEEN}


@pytest.mark.parametrize("damage", ["truncated", "missing", "other bytes"])
def test_what_is_damaged_while_its_folder_grows_is_not_recorded_as_it_is(cache, damage, caplog):
    """All files were recorded anew, so the damaged one passed as whole from then on."""
    folder, files = cache / "grown", {"a": "some bytes", "deep/b": "more bytes"}

    @contextmanager
    def grown(**more):
        with growing(folder, "the thing", lambda name: False) as growth:
            for name, text in (files | more).items():
                growth.write(name, text)
            yield growth

    with grown():
        pass
    with pytest.raises(MachineError, match=r"extended \((a|deep/b)\): run this again"), grown(new="of a"):
        DAMAGES[damage](folder)
    assert caches.fault_of(folder)
    with growing(folder, "the thing", lambda name: False) as growth:
        assert (len(growth.recorded), (folder / "new").exists()) == (1, False)
    with grown(a="another text") as growth:
        growth.remove("deep")
    assert (caches.fault_of(folder), (folder / "a").read_text(), caplog.messages) == ("", "another text", [])


def test_the_folder_of_another_program(cache, caplog):
    kind = Kind("index", "the folder of indexes")
    folder = tended(kind)
    for name in ("a.index", "b.index", "c.index-part"):
        (folder / name).write_text(name)
    assert tended(kind) == folder
    os.truncate(folder / "a.index", 1)
    (folder / "c.index-part").write_text("more")
    tended(kind)
    assert caplog.messages == [f"{folder}: the folder of indexes is damaged (a.index): recreating it"]
    assert {path.name for path in folder.iterdir()} == {"b.index", "c.index-part", "seal.json", SEEN}


DAMAGED = {
    "empty": lambda whole: b"",
    "of another": lambda whole: b"x" + whole,
    "cut": lambda whole: whole[:-9],
    "one byte": lambda whole: whole.replace(b"two", b"twp"),
    "another digest": lambda whole: b"fattn-probe things 1 00\nbody",
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_document_is_none(cache, damage, caplog):
    assert read_document(KIND, "key") is None
    write_document(KIND, "key", b"body\nof two lines")
    assert (read_document(KIND, "key"), caplog.messages) == (b"body\nof two lines", [])
    (path,) = (cache / "things").glob("*.document")
    path.write_bytes(DAMAGED[damage](path.read_bytes()))
    assert [read_document(KIND, "key"), read_document(KIND, "key")] == [None, None]
    assert caplog.messages == [f"{path}: the thing is damaged: recreating it"]


@pytest.mark.parametrize("there", [False, True], ids=["full", "no folder"])
def test_a_document_in_a_cache_that_cannot_be_written_is_made_each_time(cache, monkeypatch, there):
    if there:
        cache.mkdir()
        (cache / "things").touch()
    else:
        # The disk is full when a part of the file is there.
        monkeypatch.setattr(Path, "write_bytes", lambda path, body: [path.touch(), path.mkdir()])
    write_document(KIND, "key", b"body")
    assert read_document(KIND, "key") is None
    assert there or not [*(cache / "things").iterdir()]
