"""A few bad inputs as their users have them: a process, with a bound on its memory."""

import os
import resource
import subprocess
import sys

import pytest

SECONDS, WAITING = 10, 60  # of work, and in all
MEMORY = 5 << 28  # of address space: 1 GiB above the size after the imports


def probe(*words, cwd, size=MEMORY, **env):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))

    return subprocess.run(
        [sys.executable, "-m", "fattn_probe", *words],
        cwd=cwd,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "FATTN_PROBE_CACHE": str(cwd / "cache"), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAITING,
        check=False,
        preexec_fn=limit,
    )


@pytest.mark.parametrize("words", ["scenario show /dev/zero", "run fifo", "run op.yaml --timeout nan", "device show x"])
def test_process(words, op, fifo, tmp_path):
    done = probe(*words.split(), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, "one message"


@pytest.mark.parametrize("size", [60 << 20, 100 << 20, 200 << 20])
def test_a_limit_of_addresses_that_is_too_small(size, op, tmp_path):
    """NumPy's BLAS ends the process itself (exit 1), and an import that fails was called a bug."""
    done = probe("plan", "op.yaml", "--on", "sim:h200", cwd=tmp_path, size=size)
    assert (done.returncode, done.stdout) == (3, "")
    said = "of addresses here (`ulimit -v`), and fattn-probe needs 0.5 GiB; raise it: `ulimit -v unlimited`\n"
    assert done.stderr == f"a process may have {size / (1 << 30):.3g} GiB {said}"


def test_a_history_on_a_full_disk(tmp_path):
    """It was exit 4, and one more sentence."""
    done = probe("history", "list", "--history", "/dev/full", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert "history /dev/full: database or disk is full" in done.stderr


def test_a_closed_pipe(tmp_path):
    """As `| head -0` does."""
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run(
        [sys.executable, "-m", "fattn_probe", "device", "list"],
        stdout=theirs, stderr=subprocess.PIPE, text=True, timeout=WAITING, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (141, "")
