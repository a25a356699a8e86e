"""scripts/detection: what it refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("choose", "--results", "/nosuch"), "--results /nosuch: there is no such file"),
        (("mutants", "quick", "--results", "/nosuch"), "--results /nosuch: there is no such file"),
        (("outputs", "quick", "--keep", "/tmp", "--results", "/nosuch"), "--results /nosuch: there is no such file"),
        (("page", "--results", "/nosuch"), "--results /nosuch: there is no such file"),
        (("faults", "shows", "--only", "nosuch"), "--only nosuch: the corpus has no such fault"),
        (("faults", "shows", "--catch", "luck"), "--catch luck: the corpus has no such fault"),
    ],
)
def test_wrong_input_is_refused(words, said):
    command = [sys.executable, str(ROOT / "scripts/detection"), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
