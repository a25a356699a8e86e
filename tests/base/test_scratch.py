"""Scratch folders: whose owner lives, and whose was killed."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from fattn_probe.base.errors import MachineError
from fattn_probe.base.files import LOCK, scratch, scratch_root

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


def test_a_folder_is_there_within_and_gone_after():
    with scratch() as folder:
        (folder / "file").write_text("x")
        assert folder.parent == scratch_root()
    assert list(scratch_root().iterdir()) == []


def test_folders_of_killed_processes_are_removed_at_the_next_start():
    with owner() as (process, left):
        process.send_signal(signal.SIGKILL)
    assert (left / "case.gguf").is_file()
    with scratch() as folder:
        assert sorted(scratch_root().iterdir()) == sorted([folder, folder.with_suffix(LOCK)])


def test_the_folder_of_a_living_process_stays():
    with owner() as (process, its):
        with scratch(), scratch():
            assert (its / "case.gguf").is_file()
        process.communicate("", timeout=60)
    assert not its.exists()


def test_an_interrupted_process_leaves_nothing():
    with owner() as (process, its):
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
    assert not its.exists()


@pytest.mark.parametrize("make", ["symlink", "file"])
def test_a_place_that_is_not_ours_is_not_used(make, tmp_path):
    place = tmp_path / f"fattn-probe-{os.getuid()}"
    if make == "symlink":
        place.symlink_to("/")
    else:
        place.write_text("")
    with pytest.raises(MachineError, match="fattn-probe-"), scratch():
        pass
