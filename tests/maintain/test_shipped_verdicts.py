"""The tables of docs/measurements/detection.md are those of the verdicts in the repository."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suites", "sample"),
    [
        (("quick",), 1500),
        pytest.param(("quick", "upstream", "nightly"), 570, marks=pytest.mark.night),
    ],
)
def test_the_table_follows_from_the_verdicts(suites, sample):
    """Verdicts that no longer hold for a suite, because a hash has changed, count as open."""
    command = [sys.executable, str(ROOT / "scripts/detection"), "mutants", *suites, "--sample", str(sample)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=True)
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    page = (ROOT / "docs/measurements/detection.md").read_text()
    assert len(rows) == 9
    assert [row for row in rows if row not in page] == []
