"""A machine that refuses: outputs that cannot be written, caches that are no cache, programs that cannot be run."""

import errno
import os
import sys
from pathlib import Path

import pytest

from fattn_probe.base.errors import FattnProbeError
from fattn_probe.base.process import run
from fattn_probe.cli import setup
from fattn_probe.machine.run import session as sessions
from tests.llama.source.fake_index import write_tree


@pytest.fixture
def here(op, tmp_path):
    """A folder with a scenario, a suite, a small tree, a file and a folder."""
    write_tree(tmp_path / "tree")
    (tmp_path / "suite.yaml").write_text("version: 1\nabout: x\nscenarios: [op.yaml]\n")
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    return tmp_path


OUTPUTS = (
    "run op.yaml --captures file",
    "compare op.yaml --plot file",
    "inspect op.yaml --captures file",
    "inspect op.yaml --html folder",
    "inspect op.yaml --svg folder",
    "inspect op.yaml --transcript folder",
    "regress suite.yaml --markdown folder",
    "regress suite.yaml --junit folder",
    "history report folder",
    "build op.yaml --export file",
)


@pytest.mark.parametrize("words", OUTPUTS)
def test_an_output_of_the_wrong_kind_is_refused_before_anything_runs(words, probe, here):
    probe(*words.split()).refused(2, words.split()[-1])


def no_cache(path):
    path.write_text("a file")


def cache_in_a_file(path):
    path.symlink_to("file/cache")


def dangling(path):
    path.symlink_to("nowhere")


def in_proc(path):
    path.symlink_to("/proc/self")


CACHES = {no_cache: "must be a folder", cache_in_a_file: "must be a folder", dangling: "must be a folder", in_proc: ""}


@pytest.mark.parametrize("command", ["run op.yaml --source git+file:///nowhere@main", "source get pypi:x==1"])
@pytest.mark.parametrize("spoil", CACHES, ids=lambda spoil: spoil.__name__)
def test_cache(spoil, command, probe, here):
    spoil(here / "cache")
    ended = probe(*command.split(), "--json")
    if "git" in command:
        assert ended.code in (2, 3)
        ended.refused(ended.code)
    else:
        ended.refused(3, CACHES[spoil])
        assert ended.error()["exit_code"] == 3


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"contents": 5}', '{"source": 1, "contents": {}}', "\x00"])
def test_a_build_with_a_damaged_manifest(text, probe, here):
    (here / "folder/manifest.json").write_text(text)
    probe("run", "op.yaml", "--on", "sim:h200", "--build", "folder").refused(2, "no whole manifest.json")


FULL = (
    "device list",
    "device list --json",
    "scenario show op.yaml",
    "scenario check op.yaml",
    "source list --json",
    "doctor",
)


@pytest.mark.parametrize("words", FULL)
def test_stdout_is_full(words, probe, here, monkeypatch):
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        probe(*words.split()).refused(3, "stdout", "No space left on device")


@pytest.fixture
def unprepared(monkeypatch):
    """The small tree is not whole, so there is nothing that a run could prepare."""
    monkeypatch.setattr(setup, "prepare", lambda session, work: None)


@pytest.mark.usefixtures("unprepared")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EIO, errno.EMFILE])
def test_errors_of_the_system_are_one_sentence_with_the_path(number, probe, here, monkeypatch):
    def refuse(*args, **rest):
        raise OSError(number, os.strerror(number), "/some/place")

    monkeypatch.setattr(sessions, "scratch", refuse)
    monkeypatch.setattr(sessions.Session, "build_for", lambda *args: None)
    ended = probe("run", "op.yaml", "--on", "sim:h200", "--source", "tree", "--json")
    ended.refused(3, f"/some/place: {os.strerror(number)}")
    assert ended.error()["kind"] == "MachineError"


@pytest.mark.usefixtures("unprepared")
def test_no_memory(probe, here, monkeypatch):
    def refuse(*args):
        raise MemoryError("Unable to allocate 23.0 GiB for an array")

    monkeypatch.setattr(sessions.Session, "build_for", refuse)
    probe("run", "op.yaml", "--on", "sim:h200", "--source", "tree").refused(3, "not enough memory", "23.0 GiB")


def test_no_compiler(probe, here, monkeypatch):
    monkeypatch.setenv("PATH", str(here))
    probe("run", "op.yaml", "--on", "sim:h200", "--source", "tree").refused(3, "g++ is not on this machine")


def test_a_compiler_that_is_no_program(probe, here, monkeypatch):
    for name in ("g++", "gcc"):
        (here / name).write_text("no program")
        (here / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(here))
    probe("run", "op.yaml", "--on", "sim:h200", "--source", "tree").refused(3, "g++", "Exec format error")


def test_a_compiler_that_says_nothing(probe, here, monkeypatch):
    for name in ("g++", "gcc"):
        (here / name).write_text("#!/bin/sh\n")
        (here / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(here))
    probe("run", "op.yaml", "--on", "sim:h200", "--source", "tree").refused(3, "g++")


def test_a_program_that_cannot_be_run(tmp_path):
    with pytest.raises(FattnProbeError, match="cannot be run") as error:
        run([tmp_path])
    assert error.value.exit_code == 3
