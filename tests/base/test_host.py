"""Cores by affinity and by cgroup, and users without a name."""

import getpass
import os
import pwd
from pathlib import Path

import pytest

from fattn_probe.base import host as machine
from fattn_probe.cases.device import load_devices
from fattn_probe.machine.run import simulator


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
