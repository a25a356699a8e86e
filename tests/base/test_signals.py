"""SIGTERM and SIGHUP end a command as Ctrl-C does: one line, no child left, exit code 128 and the number."""

import os
import signal
import subprocess
import sys
import time
import uuid
from itertools import product
from pathlib import Path

import pytest

from fattn_probe.base.errors import LostError, TimedOutError
from fattn_probe.base.process import run
from fattn_probe.cli import doctor
from tests.as_user import HEEDING_HANGUPS

ROOT = Path(__file__).parents[2]
COMMAND = """
import sys, typer
from fattn_probe import cli
from fattn_probe.base.process import run
from fattn_probe.base.files import scratch
app = typer.Typer()

@app.command()
def wait() -> None:
    with scratch() as folder:
        (folder / "file").touch()
        print("started", flush=True)
        {work}

cli.app = app
sys.argv = ["fattn-probe"]
if __name__ == "__main__":  # workers import this module
    cli.main()
"""
PROGRAM = """
sys.argv = ["fattn-probe", "scenario", "show", "gqa"]
from fattn_probe.__main__ import main
main()
"""
WORKS = {
    "a program": 'run(["bash", "-c", "sleep 600 & wait"])',
    "an import": 'exec("import time; time.sleep(600)")',
    "python": "import time; time.sleep(600)",
    "processes": "from tests.base.worker_functions import programs; from fattn_probe.base.workers import Workers\n"
    "        with Workers(programs, 2) as pool: list(pool.answers([600, 600]))",
    "threads": "from fattn_probe.base.workers import threads\n"
    "        with threads(2) as pool: list(pool.map(lambda seconds: run(['sleep', seconds]), [600, 600]))",
}
ENDINGS = [(signal.SIGTERM, "terminated"), (signal.SIGHUP, "terminated: the terminal is gone")]


def marked(mark):
    """The command lines of living processes that have inherited this mark, or have it among their words."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            dead = (path / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            words = (path / "cmdline").read_bytes()
            if not dead and mark.encode() in (path / "environ").read_bytes() + words:
                yield words
        except OSError:
            pass


def started(words, folder, mark, ready=b"started", **options):
    env = {**os.environ, "MARK": mark, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    running = subprocess.Popen(
        [*HEEDING_HANGUPS, *words],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        **options,
    )
    assert running.stdout is not None
    while ready and ready not in running.stdout.readline():
        assert running.poll() is None
    return running


def nothing_left(mark):
    for _ in range(100):
        if not list(marked(mark)):
            return True
        time.sleep(0.1)
    return False


EVERY_WAY = [
    pytest.param(work, number, said, send, marks=pytest.mark.night if (i + j + k) % 2 else ())
    for (i, work), (j, (number, said)), (k, send) in product(
        enumerate(WORKS), enumerate(ENDINGS), enumerate((os.kill, os.killpg))
    )
]
"""CI has each work with each ending and each receiver, but not each with every other."""


@pytest.mark.parametrize(("work", "number", "said", "send"), EVERY_WAY)
def test_a_command_ends(tmp_path, work, number, said, send):
    mark = uuid.uuid4().hex
    (tmp_path / "command.py").write_text(COMMAND.format(work=WORKS[work]))
    running = started([sys.executable, "-m", "command"], tmp_path, mark, cwd=tmp_path)
    time.sleep(0.5)
    send(running.pid, number)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 128 + number
    assert err.decode() == f"{said}\n"
    assert nothing_left(mark)
    assert list(tmp_path.glob("fattn-probe-*/*")) == [], "its scratch folder"


def test_ctrl_c_is_sent_to_the_group(tmp_path):
    test_a_command_ends(tmp_path, "processes", signal.SIGINT, "interrupted", os.killpg)


SLOW_MODULE = """
import time
try:
    print("started", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    pass
"""


@pytest.mark.parametrize("module", ["typer", "pydantic"])
def test_ctrl_c_in_an_import(tmp_path, module):
    """It gave a traceback, or was lost where compiled code catches it, as that of pydantic does."""
    (tmp_path / f"{module}.py").write_text(SLOW_MODULE)
    words = [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(tmp_path)!r}]\n{PROGRAM}"]
    running = started(words, tmp_path, uuid.uuid4().hex)
    time.sleep(0.5)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err.decode()) == (130, b"", "interrupted\n")


def test_an_interrupt_that_its_caller_ignores(tmp_path):
    """As a shell does for its background jobs."""
    (tmp_path / "typer.py").write_text(SLOW_MODULE)
    code = f"import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.path[:0] = [{str(tmp_path)!r}]\n"
    running = started([sys.executable, "-c", code + PROGRAM], tmp_path, uuid.uuid4().hex)
    time.sleep(0.5)
    running.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert running.poll() is None
    running.kill()
    running.communicate(timeout=60)


def test_a_hangup_is_ignored_under_nohup(tmp_path):
    mark = uuid.uuid4().hex
    words = ["nohup", sys.executable, "-c", COMMAND.format(work="import time; time.sleep(2)")]
    running = started(words, tmp_path, mark)
    running.send_signal(signal.SIGHUP)
    running.communicate(timeout=60)
    assert running.returncode == 0


def test_the_demo_stops_at_ctrl_c(monkeypatch):
    """It went on with the next command, as typer turns the interrupt of one into an exit code."""
    done = []

    def command(words, standalone_mode):
        done.append(words[0])
        return 130

    monkeypatch.setattr("fattn_probe.cli.app", command)
    monkeypatch.setattr(doctor, "probe", lambda: None)
    monkeypatch.setattr(doctor, "diagnose", lambda facts: type("Report", (), {"sim_usable": True}))
    with pytest.raises(KeyboardInterrupt):
        doctor.demo()
    assert done == ["run"]


@pytest.mark.build
@pytest.mark.gdb
@pytest.mark.parametrize(("number", "said"), ENDINGS)
def test_a_debugger_ends_with_the_command(tmp_path, number, said):
    mark = uuid.uuid4().hex
    words = [sys.executable, "-m", "fattn_probe", "inspect", "gqa", "--on", "sim:h200"]
    running = started(words, tmp_path, mark, ready=b"")
    while not any(b"gdb\0" in line.partition(b"\0")[0] + b"\0" for line in marked(mark)):
        assert running.poll() is None, running.stderr.read()
        time.sleep(0.05)
    running.send_signal(number)
    _, err = running.communicate(timeout=60)
    assert (running.returncode, err.decode().splitlines()[-1]) == (128 + number, said), err.decode()
    assert nothing_left(mark)


def test_a_program_that_takes_too_long_is_killed_and_one_that_left_the_group_keeps_no_caller():
    start = time.monotonic()
    with pytest.raises(TimedOutError, match=r"^timed out after 0\.3 s: sleep 60$"):
        run(["sleep", "60"], timeout=0.3)
    assert time.monotonic() - start < 30
    assert issubclass(TimedOutError, LostError), "exit 4"
    # It holds the pipes, and the end of the output was waited for until it ended.
    with pytest.raises(TimedOutError):
        run(["bash", "-c", "setsid sleep 30 & sleep 30"], timeout=0.3)
    assert time.monotonic() - start < 20
