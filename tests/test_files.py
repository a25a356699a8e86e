"""Files that are written completely or not at all."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fattn_probe.errors import MachineError
from fattn_probe.files import replacing, write_text


def test_a_file_is_replaced_at_the_end(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_after_an_error_the_old_file_is_there_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ValueError, match="no"), replacing(path) as part:
        part.write_text("ne")
        raise ValueError("no")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_writers_of_one_file_do_not_meet(tmp_path):
    """Two threads of a process had the same temporary name."""
    path = tmp_path / ("long " * 50)

    def write(number: int) -> None:
        with replacing(path) as part:
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
            write_text(path, "new page")
    assert path.read_text() == "old"
    write_text(path, "new page")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new page", 0o640)
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_plain_file_is_written_in_place(tmp_path):
    """/dev/stdout is a link to the terminal, a pipe, or a file that others write to as well."""
    link, file, name = tmp_path / "link", tmp_path / "file", tmp_path / "other name"
    file.write_text("old")
    link.symlink_to(file)
    name.hardlink_to(file)
    write_text(link, "new")
    assert link.is_symlink()
    assert (file.read_text(), name.read_text()) == ("new", "new")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(fifo.read_text)
        write_text(fifo, "through a pipe")
        assert read.result() == "through a pipe"
    assert fifo.is_fifo()
    with pytest.raises(MachineError, match="No space left"):
        write_text(Path("/dev/full"), "text")
    with pytest.raises(MachineError, match="Is a directory"):
        write_text(tmp_path, "text")
    with pytest.raises(MachineError, match="No such file"):
        write_text(tmp_path / "none" / "file", "text")
