"""Benchmarks of whole processes: a million tokens in sampled mode, and the command line."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cpu_time import cpu_seconds_of_children

HERE = Path(__file__).parent


@pytest.mark.parametrize("options", [[], ["--n-head-kv", "2"]], ids=["16 K/V heads", "2 K/V heads"])
def test_million(benchmark, options):
    """`extra_info` has the peak memory of the process, including Python and NumPy."""

    def run():
        done = subprocess.run([sys.executable, HERE / "million.py", *options], check=True, capture_output=True)
        benchmark.extra_info |= json.loads(done.stdout)

    benchmark.pedantic(run, rounds=1)


def measure(benchmark, words, asked=""):
    """Time a command whose builds already exist; `asked` is the limit that the project has set itself."""
    argv = [sys.executable, "-m", "fattn_probe", *words]
    used = []

    def run():
        before = cpu_seconds_of_children()
        subprocess.run(argv, check=True, capture_output=True)
        used.append(cpu_seconds_of_children() - before)

    benchmark.pedantic(run, rounds=5, warmup_rounds=2)
    benchmark.extra_info |= {"asked": asked, "cpu_seconds": min(used)}


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["scenario", "list"],
        ["plan", "gqa", "--on", "sim:h200"],
        ["compare", "gqa", "--on", "sim:h200"],
    ],
    ids=" ".join,
)
def test_command(benchmark, words):
    """From the start of Python to the end of the command."""
    measure(benchmark, words)


@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
@pytest.mark.parametrize(
    ("words", "asked"),
    [(["gqa", "--host"], "1.5 s"), (["gqa"], ""), (["streamk-fractional"], "3 s")],
    ids=["host facts", "8 blocks", "264 blocks"],
)
def test_inspect(benchmark, words, asked):
    """`inspect --on sim:h200`."""
    measure(benchmark, ["inspect", *words, "--on", "sim:h200", "--json"], asked)
