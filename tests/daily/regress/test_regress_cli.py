"""Nights of a regression, as a cron job runs them."""

import json
import re

import pytest

from tests.as_user import fattn_probe
from tests.made import CAUSAL, SCENARIOS, shape

PADDED = shape(64, 16, 2, 5, 256, "n_seq: 4", CAUSAL, "layout: {mask: {pad: 64}}", "tolerance: {nmse: 1e-5}")
OTHER_KERNELS = [("gqa", "another kernel"), ("gqa", "bits changed"), ("padded", "another kernel")]
LATER = "pypi:xllamacpp==2026.10.11549"

pytestmark = [pytest.mark.build, pytest.mark.network]


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "padded.yaml").write_text(PADDED)
    path = tmp_path / "nights.yaml"
    path.write_text(f"version: 1\nabout: two cases\nscenarios: [{SCENARIOS}/gqa.yaml, padded.yaml]\n")
    return path


def probe(*words, history, code=0):
    return fattn_probe(*words, "--history", history, code=code)


@pytest.mark.parametrize(
    ("earlier", "on", "also"),
    [
        # Other tests need these builds too. The two releases choose other kernels.
        pytest.param("pypi:xllamacpp==0.2.8", "sim:h200", OTHER_KERNELS, marks=pytest.mark.slow),
        pytest.param("pypi:xllamacpp==2026.9.11063", "sim:h200", [], marks=pytest.mark.night),
    ],
)
def test_three_nights(suite, tmp_path, earlier, on, also):
    """One source, then the next, then a fault: the exit codes are 0, 0 and 6, and the third night names what broke."""
    history = tmp_path / "history.db"
    first = probe("regress", suite, "--on", on, "--source", earlier, "--accept", "the first", "--json", history=history)
    (run,) = json.loads(first.stdout)["runs"]
    # An earlier source is held to its own step sizes.
    assert [(one["status"], one["metrics"]["equal_bits"] > 0.999) for one in run["results"]] == [("pass", True)] * 2
    assert f"({earlier})" in probe("regress", suite, "--on", on, "--source", LATER, history=history).stdout
    summary = tmp_path / "summary.md"
    words = ("--on", on, "--source", LATER, "--patch", "fault-mask-stride", "--markdown", summary)
    third = probe("regress", suite, *words, history=history, code=6)
    assert f"{on}: 1 regression (1 new failure)" in third.stderr
    said = " ".join(third.stdout.split())
    assert said.count("was pass: ") == 1
    assert "fail padded" not in said  # the table has it
    assert "gqa: " not in third.stderr
    assert "| padded | **new failure** |" in summary.read_text()
    listed = json.loads(probe("history", "list", "--json", history=history).stdout)
    assert [run["counts"] for run in listed] == [{"pass": 2}, {"pass": 2}, {"pass": 1, "fail": 1}]
    page = tmp_path / "nights.html"
    probe("history", "report", page, history=history)
    text = page.read_text()
    baseline = f"the run of {listed[0]['started'][:16].replace('T', ' ')} ({earlier})"
    verdict = f"1 regression</b><br>\n1 pass, 1 fail<br>\n{LATER} with fault-mask-stride, compared with {baseline}"
    assert verdict in text
    changed = text[text.index("What changed") : text.index("<h3>Wrong")]
    assert re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td>", changed) == [("padded", "new failure"), *also]
    assert 'aria-label="errors of padded, 16 heads x 5 queries"' in text
    probe("history", "judge", history=history, code=6)


@pytest.mark.night  # CI has test_history's, of the database
def test_shards_on_several_machines_are_judged_as_one_run(suite, tmp_path):
    """Two shards into databases of their own, merged and accepted; the next night lacks one of them."""
    whole = tmp_path / "whole.db"
    for night in ("1", "2"):
        for number in (1, 2):
            part = tmp_path / f"{night}-{number}.db"
            words = ("--shard", f"{number}/2", "--run", night, "--workers", 1, "--junit", tmp_path / "shard.xml")
            probe("regress", suite, *words, history=part)
            if (night, number) != ("2", 2):
                probe("history", "merge", part, history=whole)
        if night == "1":
            probe("history", "judge", history=whole)
            (run,) = json.loads(probe("history", "list", "--json", history=whole).stdout)
            assert run["counts"] == {"pass": 2}
            probe("history", "accept", "--why", "good", history=whole, code=2)
            probe("history", "accept", "--last", "--why", "good", history=whole)
    assert "shard 2/2 did not finish" in probe("history", "judge", history=whole, code=4).stderr
    probe("history", "merge", tmp_path / "2-2.db", history=whole)
    last = probe("history", "judge", "--json", "--junit", tmp_path / "all.xml", history=whole)
    assert json.loads(last.stdout)["runs"][0]["counts"]["not run"] == 0
    assert (tmp_path / "all.xml").read_text().count("<testcase") == 2


def test_a_suite_on_a_dask_cluster(suite, tmp_path):
    distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed")
    quiet = {"dashboard_address": None, "worker_dashboard_address": None}
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, **quiet) as cluster:
        done = probe("regress", suite, "--dask", cluster.scheduler_address, "--json", history=tmp_path / "h.db")
    (run,) = json.loads(done.stdout)["runs"]
    assert run["counts"]["pass"] == 2
    assert run["identity"]["machine"] == "cluster"
