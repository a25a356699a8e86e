"""The command line in this process, with limits on time and memory, and its output."""

import contextlib
import json
import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from fattn_probe import cli
from fattn_probe.base.workers import prepare_workers
from tests.llama.source.fake_index import write_tree

SECONDS = 10
"""Processor time of a command."""
WAITING = 60
"""Total seconds; generous, because the machine may be busy."""
MEMORY = 1 << 30
"""Bytes above the process's size at the start of a command."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: object
    stdout: str
    stderr: str

    @property
    def said(self):
        """The text of stderr on one line."""
        return " ".join(self.stderr.split())

    def refused(self, code, *words):
        """Exit with `code`, one message with `words` in it, and no traceback."""
        assert self.code == code, (self.code, self.said)
        assert self.stderr.strip(), "a message"
        assert "Traceback" not in self.stderr
        assert "bug in fattn-probe" not in self.stderr
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        assert len(lines) == len(set(lines)), "said twice"
        for word in words:
            assert word in self.said, (word, self.said)

    def error(self):
        """The error in the document on stdout."""
        return json.loads(self.stdout)["error"]


@contextlib.contextmanager
def limits():
    """Within, this process may take MEMORY more bytes, and SECONDS."""

    def too_long(number, frame):
        raise AssertionError(f"no end after {SECONDS} s of work, or {WAITING} s in all")

    prepare_workers()  # a server that started within the limit would pass it on to the workers of later tests
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    handlers = {number: signal.signal(number, too_long) for number in (signal.SIGALRM, signal.SIGPROF)}
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, before[1]))
    signal.setitimer(signal.ITIMER_REAL, WAITING)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.fixture
def probe(capfd, monkeypatch, tmp_path):
    """Run `fattn-probe WORDS` in an empty folder, with a cache of its own, no index, and no user's files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FATTN_PROBE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FATTN_PROBE_INDEX", f"file://{tmp_path}/no-index")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("FATTN_PROBE_DEVICES", raising=False)

    def run(*words):
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["fattn-probe", *map(str, words)])
        code: object = 0
        with limits():
            try:
                cli.main()
            except SystemExit as end:
                code = end.code or 0
        out, err = capfd.readouterr()
        return Ended(code, out, err)

    return run


@pytest.fixture
def op(tmp_path):
    """The path of a small valid scenario."""
    path = tmp_path / "op.yaml"
    path.write_text("version: 1\nabout: x\nhsk: 64\nn_head: 1\nn_q: 1\nn_kv: 256\n")
    return path


@pytest.fixture
def here(op, tmp_path):
    """A folder with a scenario, a suite, a small tree, a file and a folder."""
    write_tree(tmp_path / "tree")
    (tmp_path / "suite.yaml").write_text("version: 1\nabout: x\nscenarios: [op.yaml]\n")
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.fixture
def regress(probe, here):
    """Run a suite with these keys on the small tree."""

    def run(keys, *words, version="version: 1\nabout: x\n"):
        (here / "suite.yaml").write_text(f"{version}{keys}\n")
        return probe("regress", "suite.yaml", "--source", "tree", "--history", "h.db", *words)

    return run


@pytest.fixture
def fifo(tmp_path):
    """A fifo without a writer."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path
