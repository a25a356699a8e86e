"""Speed of the simulator by kernel family, compared with a commit before it was optimised."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fattn_probe.base.cache import cache_dir

HERE = Path(__file__).parent
BEFORE = "90b9f71"


def speeds(package: Path, cache: Path) -> dict[str, float]:
    """GFLOP/s of one core by family."""
    env = os.environ | {"PYTHONPATH": str(package), "FATTN_PROBE_CACHE": str(cache)}
    done = subprocess.run([sys.executable, HERE / "simulator.py"], check=True, capture_output=True, env=env, cwd=cache)
    return json.loads(done.stdout)


@pytest.fixture
def before(tmp_path):
    """The package at BEFORE, or None if git does not have this commit; its builds stay in the cache."""
    tree = tmp_path / "before"
    git = ["git", "-C", HERE]
    if subprocess.run(
        [*git, "worktree", "add", "-q", "--detach", tree, BEFORE], check=False, capture_output=True
    ).returncode:
        yield None
        return
    yield tree
    subprocess.run([*git, "worktree", "remove", "--force", tree], check=True)


def test_simulator(benchmark, before):
    """`extra_info` has both speeds by family; `before` is empty in a checkout without history."""

    def run():
        cache = cache_dir()
        cache.mkdir(parents=True, exist_ok=True)
        benchmark.extra_info["simulator"] = speeds(HERE.parent, cache)
        old = cache / f"bench-{BEFORE}"
        old.mkdir(exist_ok=True)
        benchmark.extra_info["before"] = speeds(before, old) if before else {}

    benchmark.pedantic(run, rounds=1)
