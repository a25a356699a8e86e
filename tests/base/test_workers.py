"""Workers: answers, deaths, ends; each test has a limit, as a worker layer fails by waiting. Cores, and users."""

import getpass
import multiprocessing
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fattn_probe.base import host as machine
from fattn_probe.base import workers
from fattn_probe.base.errors import MachineError, TimedOutError
from fattn_probe.base.host import cores
from fattn_probe.base.workers import LONGEST_TMPDIR, Died, Workers, prepare_workers
from fattn_probe.cases.device import load_devices
from fattn_probe.machine.run import simulator
from tests.base.test_signals import marked, nothing_left, started
from tests.base.worker_functions import half, words
from tests.made import ROOT


def answers(pool: Workers[Any, Any], tasks: Iterable[Any]) -> Any:
    return list(pool.answers(tasks))


def test_a_path_that_is_too_long_for_a_socket_is_named(tmp_path, monkeypatch):
    folder = tmp_path / ("x" * LONGEST_TMPDIR)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(MachineError, match="set TMPDIR to one of at most 75 characters"):
        prepare_workers()


def test_every_task_has_its_answer_from_a_few_workers():
    tasks = [f"c{number}" for number in range(40)]
    before = threading.enumerate()
    with Workers(words, 3) as pool:
        found = answers(pool, tasks)
    assert (threading.enumerate(), multiprocessing.active_children()) == (before, []), "as Python exits, none is left"
    assert sorted(task for task, _ in found) == sorted(tasks)
    assert all(answer[0] == task for task, answer in found)
    assert len({pid for _, (_, pid) in found}) <= 3


def test_workers_are_kept_for_further_tasks_and_none_is_started_without_one():
    with Workers(words, 2) as pool:
        assert answers(pool, []) == []
        assert {pid for _, (_, pid) in answers(pool, ["b"])} == {pid for _, (_, pid) in answers(pool, ["a"])}


def test_a_task_can_wait_for_an_answer():
    """Such as one that is chosen by the answers before it."""
    seen: list[str] = []

    def tasks():
        yield "a"
        while not seen:
            yield None
        yield "b"

    with Workers(words, 2) as pool:
        for task, _ in pool.answers(tasks()):
            seen.append(task)
    assert seen == ["a", "b"]


def test_what_a_worker_tells_comes_before_its_answer():
    told: list[str] = []
    with Workers(words, 1, told.append) as pool:
        for _ in pool.answers(["told:half"]):
            assert told == ["half"]
    assert told == ["half"]


@pytest.mark.parametrize(
    ("number", "threads", "tasks", "share"), [(2, 0, 2, max(1, cores() // 2)), (2, 0, 1, cores()), (1, 1, 2, 1)]
)
def test_a_worker_has_its_share_of_the_cores(number, threads, tasks, share):
    """Two workers with one task: it has all of them."""
    with Workers(words, number, threads=threads) as pool:
        assert answers(pool, ["cores"] * tasks) == [("cores", share)] * tasks


def test_a_worker_has_its_next_task_before_the_caller_sees_its_answer():
    """A caller that takes long over an answer keeps no worker from working."""
    given: list[str] = []

    def tasks():
        for name in "abc":
            given.append(name)
            yield name

    with Workers(words, 1) as pool:
        assert next(pool.answers(tasks()))[0] == "a"
        assert given == ["a", "b"]


def test_news_bring_tasks_while_no_worker_is_busy():
    heard, news = multiprocessing.Pipe(duplex=False)
    waiting: list[str] = []

    def tasks():
        while waiting != ["over"]:
            yield waiting.pop(0) if waiting else None

    def tell(word: str) -> None:
        waiting.append(word)
        news.send_bytes(b"news")

    with heard, news, Workers(words, 2) as pool:
        timers = [threading.Timer(0.1, tell, ["a"]), threading.Timer(1.5, tell, ["over"])]
        for timer in timers:
            timer.start()
        found = [task for ready in pool.rounds(tasks(), heard) for task, _ in ready]
    assert found == ["a"]


def test_a_worker_has_the_environment_of_now(monkeypatch):
    """Not that in which the server was started."""
    workers.prepare_workers()
    monkeypatch.setenv("FATTN_PROBE_NOW", "new")
    with Workers(words, 1) as pool:
        assert [answer for _, answer in pool.answers(["environment:FATTN_PROBE_NOW"])] == ["new"]


def test_an_exception_of_a_task_is_the_callers():
    with Workers(words, 2) as pool:
        with pytest.raises(TimedOutError, match="too long") as caught:
            answers(pool, ["x", "raise:too long"])
        assert "in answer" in str(caught.value.__cause__), "the worker's traceback"
        with pytest.raises(RuntimeError, match="Unsendable: 1 and 2"):
            answers(pool, ["cannot be sent"])
        assert [task for task, _ in pool.answers(["y"])] == ["y"]


def test_a_worker_that_dies_is_replaced_and_its_task_done_again(tmp_path):
    tasks = [f"die-once:{tmp_path}/flag", *(f"c{number}" for number in range(5))]
    with Workers(words, 2) as pool:
        found = dict(answers(pool, tasks))
    assert sorted(found) == sorted(tasks)
    assert not any(isinstance(answer, Died) for answer in found.values())


def test_a_task_that_kills_its_workers_is_given_up():
    with Workers(words, 1) as pool:
        found = dict(answers(pool, ["die:", "x", "y"]))
    assert found.pop("die:") == Died("it crashed 2 workers, the last one killed by SIGKILL")
    assert [task for task, _ in found.values()] == ["x", "y"]


def test_closing_ends_tasks_in_progress():
    start = time.monotonic()
    with Workers(words, 2) as pool:
        running = pool.answers(["x", "sleep:600", "sleep:601"])
        assert next(running)[0] == "x"
        running.close()
        assert [task for task, _ in pool.answers(["y"])] == ["y"], "an answer of before is not taken for this one"
    assert time.monotonic() - start < 60


COMMAND = """
import sys, time
from fattn_probe.base import signals, workers
from tests.base import worker_functions
signals.heed()
try:
    workers.prepare_workers()
    print("started", flush=True)
    if sys.argv[2:]:
        with workers.Workers(getattr(worker_functions, sys.argv[1]), 2) as pool:
            list(pool.answers(sys.argv[2:]))
    time.sleep(20)
except KeyboardInterrupt:
    pass
"""


def command(folder, *words):
    return started([sys.executable, "-c", COMMAND, *map(str, words)], folder, str(folder), cwd=ROOT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("delay", [0.0, 0.01, 0.03, 0.1, 0.3])
@pytest.mark.parametrize("tasks", [(), (600, 600)])
def test_a_signal_to_the_group_at_any_moment_ends_it(tmp_path, delay, number, tasks):
    """A terminal sends it to the server and the workers too, which printed tracebacks, or hung in half a reply."""
    with command(tmp_path, "programs", *tasks) as running:
        time.sleep(delay)
        os.killpg(running.pid, number)
        _, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (0, b"")
    assert nothing_left(str(tmp_path))


def test_a_worker_ends_with_a_parent_that_is_killed(tmp_path):
    with command(tmp_path, "programs", 600, 600) as running:
        while sum(b"sleep 600" in line for line in marked(str(tmp_path))) < 2:
            time.sleep(0.05)
        running.kill()
    assert nothing_left(str(tmp_path))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_worker_that_takes_no_notice_is_killed(tmp_path, number):
    with command(tmp_path, "stubborn", tmp_path / "a", tmp_path / "b") as running:
        while not ((tmp_path / "a").exists() and (tmp_path / "b").exists()):
            time.sleep(0.05)
        running.send_signal(number)
        running.communicate(timeout=60)
    assert nothing_left(str(tmp_path))


def test_half_an_answer_is_a_death(tmp_path):
    task = f"{signal.SIGKILL:d}:{tmp_path}/sent"
    with Workers(half, 1) as pool:
        assert answers(pool, [task]) == [(task, b"x" * (1 << 16))], "the second worker's"


def test_a_hangup_within_an_answer_ends_the_command(tmp_path):
    """Of a pool of concurrent.futures, the parent waited for the other half of it, or for a lock of the dead worker."""
    with command(tmp_path, "half", f"{signal.SIGHUP:d}:{tmp_path}/sent") as running:
        _, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (0, b"")
    assert (tmp_path / "sent").exists()
    assert nothing_left(str(tmp_path))


LAST_MOMENT = """
import contextlib, os, pickle, types
from fattn_probe.base import workers
end, other = os.pipe()
recv = pickle.Unpickler(open("said", "rb")).load
pipe = types.SimpleNamespace(fileno=lambda: end, recv=recv, send_bytes=print)
workers._serve(pipe, lambda tell: contextlib.nullcontext(print), 1, os.environ.copy(), ".")
"""


def test_a_signal_in_the_moment_of_the_end_changes_nothing(tmp_path):
    """In Python 3.12, an exception at the jump that ends an `except` block can miss the handlers around it."""
    (tmp_path / "said").write_bytes(b"cposix\nkillpg\n(I0\nI15\ntR")  # SIGTERM, and then the end of the file
    words, env = [sys.executable, "-c", LAST_MOMENT], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, start_new_session=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def groups(tmp_path, text, **files):
    """A /proc/self/cgroup, and a mount with these files; `__` in a name is `/`."""
    (tmp_path / "cgroup").write_text(text)
    for name, content in files.items():
        path = tmp_path / "mount" / name.replace("__", "/").replace("_max", ".max").replace("cpu_cfs", "cpu.cfs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return list(machine.quotas(tmp_path / "cgroup", tmp_path / "mount"))


@pytest.mark.parametrize(
    ("text", "files", "found"),
    [
        ("0::/\n", {"cpu_max": "150000 100000\n"}, [1.5]),
        ("0::/\n", {"cpu_max": "max 100000\n"}, []),
        ("0::/a/b\n", {"a__cpu_max": "200000 100000\n", "a__b__cpu_max": "max 100000\n"}, [2.0]),
        ("0::/../../seen/by/host\n", {"cpu_max": "50000 100000\n"}, [0.5]),
        ("3:cpu,cpuacct:/a\n", {"cpu__a__cpu_cfs_quota_us": "300000\n", "cpu__a__cpu_cfs_period_us": "100000"}, [3.0]),
        ("3:cpu:/\n", {"cpu__cpu_cfs_quota_us": "-1\n", "cpu__cpu_cfs_period_us": "100000\n"}, []),
        ("3:memory:/a\n", {"cpu__a__cpu_cfs_quota_us": "300000\n", "cpu__a__cpu_cfs_period_us": "100000\n"}, []),
        ("0::/\n", {"cpu_max": "100000 0\n"}, []),
        ("", {}, []),
    ],
)
def test_quotas(tmp_path, text, files, found):
    assert groups(tmp_path, text, **files) == found


@pytest.mark.parametrize(("quota", "expected"), [(0.1, 1), (1.0, 1), (1.5, 2), (3.0, 3), (64.0, 8), (None, 8)])
def test_cores_are_the_fewest_of_affinity_and_quota(monkeypatch, quota, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 256)
    monkeypatch.setattr(machine, "quotas", lambda *places: iter([quota] if quota else []))
    assert machine.cores() == expected


@pytest.mark.parametrize(("threads", "expected"), [(None, "3"), (5, "5")])
def test_the_simulator_has_a_thread_for_each(monkeypatch, threads, expected):
    """Left to itself, it takes the cores of the affinity: a container may have time for fewer."""
    monkeypatch.setattr(simulator, "cores", lambda: 3)
    env = simulator.Simulation(threads=threads, dry=True).env(load_devices()["h200"], "")
    assert env["FATTN_PROBE_SIM_THREADS"] == expected


def test_a_user_without_a_name(monkeypatch):
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: (_ for _ in ()).throw(KeyError("uid not found")))
    with pytest.raises((KeyError, OSError)):
        getpass.getuser()
    assert machine.user_name() == f"uid {os.getuid()}"


@pytest.mark.parametrize(("share", "expected"), [("1", 1), ("0", 1), ("many", 4), ("", 4), ("64", 4)])
def test_the_share_of_a_worker(monkeypatch, share, expected):
    asked: list[Path] = []

    def quotas(groups, mount):
        asked.append(groups)
        return []

    monkeypatch.setattr(machine, "affinity", lambda: 4)
    monkeypatch.setattr(machine, "quotas", quotas)
    monkeypatch.setenv(machine.SHARE, share)
    assert machine.cores() == expected
    assert bool(asked) == (expected > 1)  # a worker with one core asks at each step of a case
