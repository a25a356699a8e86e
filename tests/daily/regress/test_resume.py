"""`regress --resume` and shards, as a user runs them: results of something else are never mixed in."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from fattn_probe.llama.source import DEFAULT_SOURCE, kept_files, resolve
from tests.as_user import fattn_probe
from tests.made import at_night, shape

SUITE = """
version: 1
about: two entries of tiny cases
scenarios: [tiny.yaml]
on: [cpu]
check: {{sample: {sample}}}
entries:
  - {{name: again, scenarios: [more.yaml], on: [cpu]}}
"""
PATCH = """--- a/ggml/src/ggml.c
+++ b/ggml/src/ggml.c
@@ -1,1 +1,2 @@
+// {said}
{first}
"""
PATIENCE = 120


class Place:
    """A suite in a folder of its own, with its history."""

    def __init__(self, folder):
        self.folder, self.history = folder, folder / "h.db"
        self.write()

    def write(self, n_kv=64, seeds=(1, 2, 3), sample="all", more=(4, 5, 6)):
        (self.folder / "tiny.yaml").write_text(shape(64, 1, 1, 1, n_kv, f"matrix: {{seed: {list(seeds)}}}"))
        (self.folder / "more.yaml").write_text(shape(64, 1, 1, 1, 64, f"matrix: {{seed: {list(more)}}}"))
        (self.folder / "s.yaml").write_text(SUITE.format(sample=sample))

    def words(self, *more):
        return ("regress", self.folder / "s.yaml", "--history", self.history, "--workers", "1", *more)

    def regress(self, *more, code=0):
        """The runs of a call as JSON, and what it said on stderr."""
        done = fattn_probe(*self.words("--json", *more), code=code)
        return json.loads(done.stdout)["runs"], " ".join(done.stderr.split())

    def rows(self, query, *values):
        with closing(sqlite3.connect(self.history, timeout=60)) as opened, opened:
            return opened.execute(query, values).fetchall()

    def times(self):
        """When each result was made, by run and case."""
        query = "SELECT runs.uid, name, at FROM results JOIN runs ON runs.id = run WHERE status <> 'lost'"
        return {(uid, name): at for uid, name, at in self.rows(query)}

    def stop(self, *left):
        """Leave the history as a kill would that came before the cases `left`, the last of the suite."""
        self.rows("UPDATE calls SET ended = NULL")
        for name in left:
            self.rows("DELETE FROM results WHERE name = ?", name)
        for table, column in (("runs", "id"), ("parts", "run")):
            self.rows(f"UPDATE {table} SET ended = NULL WHERE {column} = (SELECT max(id) FROM runs)")


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A llama.cpp folder of the user's own."""
    root, own = resolve(DEFAULT_SOURCE).root, tmp_path_factory.mktemp("tree") / "llama.cpp"
    for path in kept_files(root):
        (own / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, own / path)
    return own


def test_a_killed_call_goes_on_at_the_next_case_and_not_at_an_entry_that_had_finished(place):
    place.write(seeds=(1, 2), more=range(100, 160))
    assert killed(place, 5, signal.SIGKILL)
    before = place.times()
    assert 5 <= len(before) < 62, "it was killed in the second entry"
    (first, second), said = place.regress("--resume")
    assert (first["counts"]["pass"], second["counts"]["pass"]) == (2, 60)
    assert len({run["uid"] for run in (first, second)}) == len(place.rows("SELECT uid FROM runs")) == 2
    after = place.times()
    assert {key: after[key] for key in before} == before, "no finished case runs again"
    assert "run again" not in said


def killed(place, number, by):
    """Whether a call was ended by a signal once it had a number of results; it may have finished first."""
    command = [sys.executable, "-m", "fattn_probe", *map(str, place.words("--resume"))]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as run:
        deadline = time.monotonic() + PATIENCE
        while run.poll() is None and len(read_of(place, place.times, ())) < number:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        alive = run.poll() is None
        if alive:
            os.killpg(run.pid, by)
    return alive


def read_of(place, read, nothing):
    """What is read from the history; `nothing` before there is a table."""
    try:
        return read() if place.history.exists() else nothing
    except sqlite3.OperationalError:
        return nothing


def test_a_call_that_was_killed_between_two_entries_goes_on_with_the_second(place):
    place.regress()
    place.rows("UPDATE calls SET ended = NULL")
    place.rows("DELETE FROM results WHERE run = 2")
    place.rows("DELETE FROM parts WHERE run = 2")
    place.rows("DELETE FROM runs WHERE id = 2")
    before = place.times()
    runs, _ = place.regress("--resume")
    assert [run["counts"]["pass"] for run in runs] == [3, 3]
    assert {key: place.times()[key] for key in before} == before
    assert place.rows("SELECT count(*), count(ended) FROM calls") == [(1, 1)]


def test_a_call_that_finished_is_not_continued(place):
    first, _ = place.regress()
    second, _ = place.regress("--resume")
    assert {run["uid"] for run in first}.isdisjoint(run["uid"] for run in second)


def an_edited_source(place, tree):
    yield "the source's files", True, "--source", tree
    with (tree / "ggml/src/ggml-cuda/fattn.cu").open("a") as file:
        file.write("// an edit\n")


def a_patch_with_other_text(place, tree):
    patch, first = place.folder / "own.patch", (tree / "ggml/src/ggml.c").read_text().partition("\n")[0]
    patch.write_text(PATCH.format(said="one", first=f" {first}"))
    yield "the patches' text", True, "--source", tree, "--patch", patch
    patch.write_text(PATCH.format(said="two", first=f" {first}"))


def other_checks(place, tree):
    """Of the second entry they are the same."""
    yield "how cases are judged", False
    place.write(sample="auto")


def cases_of_another_size(place, tree):
    yield "the cases themselves", False
    place.write(n_kv=128)


def in_the_history(place, **other):
    for number, text in place.rows("SELECT id, fingerprint FROM runs"):
        place.rows(
            "UPDATE runs SET fingerprint = ?, uid = id WHERE id = ?", json.dumps(json.loads(text) | other), number
        )


def another_fattn_probe(place, tree):
    yield "fattn-probe itself", True
    in_the_history(place, own="other")


def another_compiler(place, tree):
    yield "the compilers", True
    in_the_history(place, compilers=["g++ 1"])


AT_NIGHT = (a_patch_with_other_text, cases_of_another_size, another_fattn_probe, another_compiler)


@pytest.mark.parametrize("change", [an_edited_source, other_checks, *at_night(*AT_NIGHT)])
def test_results_of_something_else_are_made_again(place, tree, change):
    changing = change(place, tree)
    why, both, *words = next(changing)
    place.regress(*words)
    place.stop("more-seed=6")
    next(changing, None)
    before = place.times()
    runs, said = place.regress(*words, "--resume")
    minute = place.rows("SELECT started FROM runs")[0][0][:16].replace("T", " ")
    assert f"s: rerunning 3 cases of the run from {minute}, since {why} changed" in said
    assert ("s/again: rerunning 2 cases of the run" in said) == both
    assert [run["counts"]["pass"] for run in runs] == [3, 3]
    assert len(place.rows("SELECT uid FROM runs")) == 3 + both, "no run has results of both"
    assert len(place.times()) == len(before) + (6 if both else 3 + 1)


def test_a_wider_suite_keeps_the_results_that_it_has(place):
    place.regress()
    place.stop("more-seed=6")
    place.write(seeds=(1, 2, 3, 9))
    before = place.times()
    runs, said = place.regress("--resume")
    assert runs[0]["counts"]["pass"] == 4
    assert "run again" not in said
    kept = [at for (uid, name), at in place.times().items() if uid == runs[0]["uid"] and name != "tiny-seed=9"]
    assert set(kept) <= set(before.values())


def test_shards_that_were_judged_otherwise_are_not_one_run(place):
    place.write(seeds=range(8), more=range(8))
    place.regress("--shard", "1/2", "--run", "night")
    place.write(seeds=range(8), more=range(8), sample="auto")
    place.regress("--shard", "2/2", "--run", "night")
    done = fattn_probe("history", "judge", "--history", place.history, code=4)
    assert "cpu: shard 1/2 did not finish; another part of this run differs in how cases are judged" in " ".join(
        done.stderr.split()
    )
    place.regress("--shard", "1/2", "--run", "night")
    fattn_probe("history", "judge", "--history", place.history)
