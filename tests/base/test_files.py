"""Files that are written completely or not at all, their locks, and scratch folders of processes that were killed."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from fattn_probe.base import documents, files
from fattn_probe.base.errors import InputError, MachineError


def test_a_file_is_replaced_at_the_end_and_after_an_error_the_old_one_is_there(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ValueError, match="no"), files.replacing(path) as part:
        part.write_text("ne")
        raise ValueError("no")
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])
    with files.replacing(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert (path.read_text(), list(tmp_path.iterdir())) == ("new", [path])


def test_writers_of_one_file_do_not_meet(tmp_path):
    """Two threads of a process had the same temporary name."""
    path = tmp_path / ("long " * 50)

    def write(number: int) -> None:
        with files.replacing(path) as part:
            part.write_text(f"{number}" * 9999)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert path.read_text() in [f"{number}" * 9999 for number in range(8)]
    assert list(tmp_path.iterdir()) == [path]


def test_a_result_is_never_half_written(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    path.write_text("old")
    path.chmod(0o640)

    def full(self, text, encoding):
        with self.open("w") as file:
            file.write(text[:2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises(MachineError, match=r"page.html: cannot be written: No space left on device"):
            files.write_text(path, "new page")
    assert path.read_text() == "old"
    files.write_text(path, "new page")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new page", 0o640)
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_plain_file_is_written_in_place(tmp_path):
    """/dev/stdout is a link to the terminal, a pipe, or a file that others write to as well."""
    link, file, name = tmp_path / "link", tmp_path / "file", tmp_path / "other name"
    file.write_text("old")
    link.symlink_to(file)
    name.hardlink_to(file)
    files.write_text(link, "new")
    assert link.is_symlink()
    assert (file.read_text(), name.read_text()) == ("new", "new")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(fifo.read_text)
        files.write_text(fifo, "through a pipe")
        assert read.result() == "through a pipe"
    assert fifo.is_fifo()
    with pytest.raises(MachineError, match="No space left"):
        files.write_text(Path("/dev/full"), "text")
    with pytest.raises(MachineError, match="Is a directory"):
        files.write_text(tmp_path, "text")


def test_the_folder_of_a_result_is_made(tmp_path):
    """`inspect --html reports/x.html` failed after its work."""
    files.write_text(tmp_path / "a/b/c.html", "x")
    assert (tmp_path / "a/b/c.html").read_text() == "x"
    with pytest.raises(MachineError, match=r"c.html/d: cannot be written: "):
        files.write_text(tmp_path / "a/b/c.html/d", "x")
    with pytest.raises(MachineError, match=r"c.html/d/e: cannot be written: Not a directory"):
        files.check_place(tmp_path / "a/b/c.html/d/e")
    files.check_place(tmp_path / "a/new/c.html")
    files.check_place(tmp_path / "a/b")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "c.html"]


def test_a_pattern_finds_what_a_glob_does_and_follows_no_loop(tmp_path):
    for name in ("a.yaml", ".b.yaml", "c d/e.yaml", "c d/f/g.yaml", "c d/f/h.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "c d/loop").symlink_to(tmp_path)
    (tmp_path / "linked").symlink_to(tmp_path / "c d/f")
    inside = {"a.yaml", ".b.yaml", "c d/e.yaml", "c d/f/g.yaml"}
    assert names(tmp_path, "**/*.yaml") == inside
    assert names(tmp_path, f"{tmp_path}/**/*.yaml") == inside
    assert names(tmp_path, "**/**/g.yaml") == {"c d/f/g.yaml"}
    assert names(tmp_path, "*.yaml") == {"a.yaml", ".b.yaml"}
    assert names(tmp_path, "linked/*.yaml") == names(tmp_path, "link*/*.yaml") == {"linked/g.yaml"}
    assert names(tmp_path / "c d", "../a.yaml") == {"c d/../a.yaml"}
    assert names(tmp_path, "a.yaml/..") == names(tmp_path, "no*") == names(tmp_path, "no/*.yaml") == set()


def names(folder, pattern):
    top = folder if (folder / "a.yaml").exists() else folder.parent
    return {path.relative_to(top).as_posix() for path in files.find_files(folder, pattern)}


def test_a_pattern_visits_a_bounded_number_of_files(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_VISITED", 10)
    for number in range(6):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "a.yaml").write_text("")
    assert len(files.find_files(tmp_path, "*")) == 6
    with pytest.raises(InputError, match=r"'\*/\*.yaml' visits more than 10 files; start in a smaller folder"):
        files.find_files(tmp_path, "*/*.yaml")


@pytest.mark.parametrize(("before", "over"), [((), False), ((), True), (("old",), True)])
def test_a_folder_takes_its_place_whole(tmp_path, before, over):
    """A new one, and one that replaces another; an error on the way leaves what was there, and nothing beside it."""
    folder = tmp_path / "out"
    for name in before:
        files.write_text(folder / name, "x")
    with pytest.raises(ValueError, match="stop"), files.whole_folder(folder, over=over) as made:
        (made / "new").write_text("y")
        raise ValueError("stop")
    assert [path.name for path in tmp_path.rglob("*")] == [*(["out"] if before else []), *before]
    with files.whole_folder(folder, over=over) as made:
        (made / "new").write_text("y")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "new"]


def test_a_folder_with_files_is_not_replaced_unasked(tmp_path):
    files.write_text(tmp_path / "out/old", "x")
    with pytest.raises(MachineError, match="out: cannot be written"), files.whole_folder(tmp_path / "out") as made:
        (made / "new").write_text("y")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "old"]


def test_a_large_limit_takes_no_memory(tmp_path):
    (tmp_path / "x").write_text("abc")
    tracemalloc.start()
    try:
        assert files.read_text(tmp_path / "x", "the file", most=1 << 34) == "abc"
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


WORKER = """
import json, sys
from pathlib import Path
from fattn_probe.base.files import lock_of_file, replacing
path = Path(sys.argv[1])
for _ in range(200):
    with lock_of_file(path):
        number = json.loads(path.read_text() or "0")
        with replacing(path) as part:
            part.write_text(str(number + 1))
"""


def in_two_processes(program, path):
    """Run a program twice at once, each with a cache of its own; its arguments are the path and the cache's name."""
    command, caches = [sys.executable, "-c", program, path], {name: path.with_name(name) for name in ("one", "two")}
    environments = {name: os.environ | {"FATTN_PROBE_CACHE": str(cache)} for name, cache in caches.items()}
    children = [subprocess.Popen([*command, name], env=env) for name, env in environments.items()]
    assert [child.wait() for child in children] == [0, 0]


def test_two_processes_with_two_caches_change_one_file(tmp_path):
    path = tmp_path / "results.json"
    in_two_processes(WORKER, path)
    assert json.loads(path.read_text()) == 400
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


HISTORY = """
import sys
from pathlib import Path
from fattn_probe.base import documents
for number in range(100):
    documents.append(Path(sys.argv[1]), [{"from": sys.argv[2], "number": number}] * 3)
"""


@pytest.mark.parametrize("name", ["verdicts.jsonl", "verdicts.jsonl.gz"])
def test_two_processes_with_two_caches_append_to_one_file(tmp_path, name):
    path = tmp_path / name
    in_two_processes(HISTORY, path)
    items = list(documents.read(path, "verdict"))
    assert sorted({(item["from"], item["number"]) for item in items}) == [
        (cache, number) for cache in ("one", "two") for number in range(100)
    ]
    assert len(items) == 600


def test_a_held_lock_is_not_waited_for(tmp_path):
    with files.lock_of_file(tmp_path / "x"):
        with pytest.raises(BlockingIOError), files.lock_of_file(tmp_path / "x", wait=False):
            pass
        with files.replacing(tmp_path / "x") as part:
            part.touch()
        with files.lock_of_file(tmp_path / "x", wait=False):
            pass


OWNER = """
import sys, time
from fattn_probe.base.files import scratch
with scratch() as folder:
    (folder / "case.gguf").write_bytes(bytes(1 << 20))
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


@contextmanager
def owner():
    """A process with a scratch folder, and the folder."""
    argv = [sys.executable, "-c", OWNER]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process, Path(process.stdout.readline().strip())


def test_a_folder_is_there_within_and_gone_after_also_if_the_process_is_interrupted():
    with files.scratch() as folder:
        (folder / "file").write_text("x")
        assert folder.parent == files.scratch_root()
    assert list(files.scratch_root().iterdir()) == []
    with owner() as (process, its):
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
    assert not its.exists()


def test_folders_of_killed_processes_are_removed_at_the_next_start():
    with owner() as (process, left):
        process.send_signal(signal.SIGKILL)
    assert (left / "case.gguf").is_file()
    with files.scratch() as folder:
        assert sorted(files.scratch_root().iterdir()) == sorted([folder, folder.with_suffix(files.LOCK)])


def test_the_folder_of_a_living_process_stays():
    with owner() as (process, its):
        with files.scratch(), files.scratch():
            assert (its / "case.gguf").is_file()
        process.communicate("", timeout=60)
    assert not its.exists()


@pytest.mark.parametrize("make", ["symlink", "file"])
def test_a_place_that_is_not_ours_is_not_used(make, tmp_path):
    place = tmp_path / f"fattn-probe-{os.getuid()}"
    if make == "symlink":
        place.symlink_to("/")
    else:
        place.write_text("")
    with pytest.raises(MachineError, match="fattn-probe-"), files.scratch():
        pass
