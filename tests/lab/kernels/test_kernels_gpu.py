"""Contenders on a real GPU: as right as on the simulated one, and timed."""

import re

import pytest

from fattn_probe.lab.kernels.compiled import CUDA
from tests.as_user import answer, fattn_probe

pytestmark = pytest.mark.gpu


def test_kernels_are_right_and_timed():
    rows = answer("compare", "prefill", "gqa", "--kernel", "llama,naive,tiled", "--on", "gpu,sim:h200")["rows"]
    assert len(rows) == 12 and all(row["status"] == "pass" for row in rows)
    timed = [row for row in rows if row["seconds"]]
    assert {row["on"] for row in timed} == {"gpu:0"} and all(len(row["seconds"]) == 20 for row in timed)


def test_tiled_is_faster_than_naive():
    said = fattn_probe("program", CUDA / "naive_and_tiled.cu", "--on", "gpu", "--", "1024", "64").stdout
    found = re.search(r"^ +1024 +64 .* ([\d.]+)x +(\S+)$", said, re.MULTILINE)
    assert float(found[1]) >= 1.5 and float(found[2]) <= 3e-2
