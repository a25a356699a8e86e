"""Run the benchmarks and print the main figures as ratios within this run; arguments go to pytest."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
Benchmarks = Mapping[str, Mapping[str, Any]]


def measured(words: list[str]) -> Benchmarks:
    """The benchmarks' records by name; exits as pytest does if one fails."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        argv = [
            sys.executable,
            "-m",
            "pytest",
            HERE,
            "-q",
            "--benchmark-disable-gc",
            f"--benchmark-json={report}",
            *words,
        ]
        code = subprocess.run(argv, check=False, stdout=sys.stderr).returncode
        if code:
            sys.exit(code)
        return {record["name"]: record for record in json.loads(report.read_text())["benchmarks"]}


def rows(found: Benchmarks) -> list[tuple[str, str, str]]:
    """(name, figure, requirement) for each measurement."""
    made = []
    for name, record in found.items():
        info, seconds = record["extra_info"], record["stats"]["min"]
        what = name.removeprefix("test_").replace("[", ": ").rstrip("]")
        if "ratio" in info:
            figure = f"{info['ratio']:.2f} of the matrix product's {info['product_gflop_s']:.0f} GFLOP/s"
            asked = "0.80" if name == "test_reference[plain]" else ""
            made.append((what, f"{figure}; {info['ratio_of_cpu_time']:.2f} by CPU time", asked))
        elif "peak_GiB" in info:
            figure = f"{info['seconds']:.1f} s ({info['cpu_seconds']:.1f} s of CPU), {info['peak_GiB']:.2f} GiB"
            made.append((what, f"{figure}, {info['rows']} rows", "20 s, 8 GB"))
        elif "objects" in info:
            figure = f"{seconds:.1f} s ({info['cpu_seconds']:.1f} s of CPU), {info['objects']} objects compiled"
            made.append((what, figure, info["asked"]))
        elif "check" in info:
            made.append((what, f"{info['check']:.1f} times the CPU time of a run without it", "4 times"))
        elif "simulator" in info:
            made += simulator_rows(info["simulator"], info["before"])
        else:
            cpu = f" ({info['cpu_seconds']:.2f} s of CPU)" if "cpu_seconds" in info else ""
            made.append((what, f"{seconds:.2f} s{cpu}", info.get("asked", "")))
    return made


def simulator_rows(speeds: Mapping[str, float], before: Mapping[str, float]) -> list[tuple[str, str, str]]:
    """The simulator's speed by kernel family."""
    made = []
    for family, speed in speeds.items():
        ratio = f", {speed / before[family]:.1f} times that of 90b9f71" if before else ""
        asked = "5 GFLOP/s" if family == "mma" else "3 times"
        made.append((f"simulator: {family}", f"{speed:.2f} GFLOP/s a core{ratio}", asked))
    return made


def against_torch(found: Benchmarks) -> list[tuple[str, str, str]]:
    """The speed of the reference relative to PyTorch, if both were measured."""
    if not {"test_torch", "test_reference[plain]"} <= set(found):
        return []
    times = [found[name]["stats"]["min"] for name in ("test_torch", "test_reference[plain]")]
    return [("reference: plain, relative to PyTorch's float64 SDPA", f"{times[0] / times[1]:.2f} times as fast", "")]


def main() -> None:
    """Measure and print."""
    found = measured(sys.argv[1:])
    table = Table("figure", "measured", "required")
    for row in rows(found) + against_torch(found):
        table.add_row(*row)
    Console(width=140 if not sys.stdout.isatty() else None).print(table)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; an idle machine has about 0")


if __name__ == "__main__":
    main()
