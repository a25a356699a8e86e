"""Benchmarks of whole processes: a million tokens in sampled mode, and the command line."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GQA = HERE.parent / "scenarios/gqa.yaml"


@pytest.mark.parametrize("options", [[], ["--n-head-kv", "2"]], ids=["16 K/V heads", "2 K/V heads"])
def test_million(benchmark, options):
    """`extra_info` has the peak memory of the process, including Python and NumPy."""

    def run():
        done = subprocess.run([sys.executable, HERE / "million.py", *options], check=True, capture_output=True)
        benchmark.extra_info |= json.loads(done.stdout)

    benchmark.pedantic(run, rounds=1)


@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
@pytest.mark.parametrize("options", [["--host"], []], ids=["host facts", "all blocks"])
def test_inspect(benchmark, options):
    """`fattn-probe inspect scenarios/gqa.yaml --on sim:h200`, with a cached build."""
    argv = [sys.executable, "-m", "fattn_probe", "inspect", GQA, "--on", "sim:h200", "--json", *options]
    benchmark.pedantic(lambda: subprocess.run(argv, check=True, capture_output=True), rounds=3, warmup_rounds=1)
