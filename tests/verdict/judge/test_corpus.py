"""Each historic fault is shown by its case: fine without the fault, and caught with it as its head says."""

import json

import pytest

from fattn_probe.llama.source.faults import corpus
from fattn_probe.verdict.judge.support import LOST
from tests.as_user import completed

pytestmark = [pytest.mark.build, pytest.mark.night, pytest.mark.network]


def rows_of(shown, *words):
    """The rows of `compare`, whatever its exit code."""
    words = (*words, "--on", f"sim:{shown.device}", "--no-maps", "--json")
    done = completed("compare", shown.scenario, *words, limit=3600)
    assert done.returncode in (0, 4, 5), done.stdout + done.stderr
    return json.loads(done.stdout)["rows"]


def caught(catch, row, right):
    """Whether a row shows the fault, next to the row of the release without it."""
    stopped = row["finding"] is not None
    return {
        "verdict": row["status"] == "fail" and not stopped,
        "crash": row["status"] == "lost" or stopped,
        "check": row["status"] == "fail" and stopped,
        "support": row["status"] == "unsupported" or row["reason"].startswith(LOST),
        "kernel": row["status"] == "pass" and row["kernels"] != right["kernels"],
    }[catch]


@pytest.mark.parametrize("fault", corpus(), ids=lambda fault: fault.patch.name)
def test_fault_is_caught(fault):
    flags = ["--check"] if fault.catch == "check" else []
    for shown in fault.shows:
        right = rows_of(shown, *flags)
        assert {row["status"] for row in right} == {"pass"}
        wrong = rows_of(shown, "--patch", fault.name, *flags)
        assert any(caught(fault.catch, row, before) for row, before in zip(wrong, right, strict=True))
