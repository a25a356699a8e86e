"""A machine that refuses: outputs that cannot be written, caches that are no cache, programs that cannot be run."""

import errno
import os
import sys

import pytest

from fattn_probe.base.errors import FattnProbeError
from fattn_probe.base.process import run
from fattn_probe.cli import setup
from fattn_probe.machine.run import session as sessions
from tests.made import ROOT, executable

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


CACHES = {
    "/dev/null": "must be a folder",
    "file/cache": "must be a folder",
    "nowhere": "must be a folder",
    "/proc/self": "",
}
"""Where a link in place of the cache leads, and what is said."""


@pytest.mark.parametrize("place", CACHES)
def test_cache(place, probe, here):
    (here / "cache").symlink_to(place)
    ended = probe("source", "get", "pypi:x==1", "--json")
    ended.refused(3, CACHES[place])
    assert ended.error()["exit_code"] == 3
    ended = probe("run", "op.yaml", "--source", "git+file:///nowhere@main", "--json")
    ended.refused(ended.code)
    assert ended.code in (2, 3)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"contents": 5}', '{"source": 1, "contents": {}}', "\x00"])
def test_a_build_with_a_damaged_manifest(text, probe, here):
    (here / "folder/manifest.json").write_text(text)
    probe("run", "op.yaml", "--on", "sim:h200", "--build", "folder").refused(2, "no complete manifest.json")


def test_a_history_on_a_full_disk(probe, here):
    """It was exit 4, and one more sentence."""
    probe("history", "list", "--history", "/dev/full").refused(3, "history /dev/full: database or disk is full")


@pytest.mark.parametrize("size", [60, 100, 200])
def test_a_limit_of_addresses_that_is_too_small(size, op, cache, tmp_path):
    """NumPy's BLAS ends the process itself (exit 1), and an import that fails was called a bug."""
    limited = f"ulimit -v {size << 10}; exec {sys.executable} -m fattn_probe plan op.yaml --on sim:h200"
    env = {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "FORCE_COLOR": None}
    done = run(["bash", "-c", limited], cwd=tmp_path, env=env, failure=None)
    said = "of address space here (`ulimit -v`), but fattn-probe needs 0.5 GiB; raise it: `ulimit -v unlimited`\n"
    assert (done.code, done.stdout) == (3, "")
    assert done.stderr == f"a process may use {size / 1024:.3g} GiB {said}"


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


@pytest.mark.parametrize(
    ("text", "said"), [(None, "g++ is not installed"), ("no program", "Exec format error"), ("#!/bin/sh\n", "g++")]
)
def test_no_compiler_one_that_is_no_program_and_one_that_says_nothing(text, said, probe, here, monkeypatch):
    for name in ("g++", "gcc") if text else ():
        executable(here / name, text)
    monkeypatch.setenv("PATH", str(here))
    probe("run", "op.yaml", "--on", "sim:h200", "--source", "tree").refused(3, "g++", said)


def test_a_program_that_cannot_be_run(tmp_path):
    with pytest.raises(FattnProbeError, match="cannot be run") as error:
        run([tmp_path])
    assert error.value.exit_code == 3
