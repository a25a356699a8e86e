import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fattn_probe.base.errors import InputError, LostError, MachineError
from fattn_probe.cases.op import Op, Params, Sizes
from fattn_probe.daily.regress.history import open_history
from fattn_probe.daily.regress.records import (
    Identity,
    PackedMap,
    Result,
    RunPart,
    Settings,
    Shard,
    StoredCase,
    parse_shard,
)
from fattn_probe.daily.regress.schema import MIGRATIONS, VERSION, transaction
from fattn_probe.daily.regress.tables import run_json
from fattn_probe.machine.run.outcome import Finding
from fattn_probe.verdict.judge.bitwise import Check
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.measure.sampled import Sampled
from tests.as_user import answer, fattn_probe
from tests.daily.regress.made import GPU, SIM, night
from tests.made import at_night

LAUNCH = '{"order":0,"kernel":"f<1>","grid":[8,1,1],"block":[32,4,1],"shared":0}'
PASS = Result("gqa", "abc", "pass", "", {"nmse": 1e-7}, "00ff", LAUNCH, (0.1, 0.2))


@pytest.fixture
def history(tmp_path):
    with open_history(tmp_path / "history.db") as found:
        yield found


def test_a_result_survives_a_round_trip(history):
    run = history.begin(SIM, "nightly")
    history.add(run, PASS)
    assert history.results(run) == {"gqa": PASS}
    assert history.results(run)["gqa"].kernels[0].spelling == "f<1>"
    again = Result("gqa", "abc", "fail", "wrong")
    history.add(run, again)
    assert history.results(run) == {"gqa": again}, "a case that runs again has one result"


def test_the_baseline_is_the_last_accepted_run_of_the_line_and_suite(history):
    first, second = night(history, PASS), night(history, PASS)
    assert history.baseline(SIM.line, "nightly") is None
    history.accept(first, "me", "the first")
    history.accept(second, "me", "looked at")
    assert history.baseline(SIM.line, "nightly").uid == second.uid
    assert history.baseline(SIM.line, "quick") is None
    history.accept(first, "me", "back to it")
    assert history.baseline(SIM.line, "nightly").uid == first.uid


def test_a_line_goes_on_through_sources(history):
    newer = Identity(**{**vars(SIM), "source": "pypi:x==2", "build_number": "11549"})
    for identity, output in ((SIM, "00"), (newer, "11")):
        history.add(history.begin(identity, "nightly"), Result("gqa", "abc", "pass", output=output))
    runs = history.runs(SIM.line)
    assert [history.outputs(runs, "gqa")[run.id] for run in runs] == ["00", "11"]


def test_times_of_a_real_gpu_are_the_machines():
    gpu = Identity("a", "NVIDIA H200", "9.0", "580", "cuda", "release", "s", "1", "", "0")
    assert gpu.line != Identity(**{**vars(gpu), "machine": "b"}).line
    assert SIM.line == Identity(**{**vars(SIM), "machine": "there"}).line


def test_the_same_launches_are_kept_once_and_pruning_keeps_what_was_accepted(history):
    kept = night(history, PASS, accepted="good")
    night(history, PASS, ended=False)
    assert history.prune("9999") == 1
    assert [run.uid for run in history.runs()] == [kept.uid]
    assert history.results(kept) == {"gqa": PASS}
    for _ in range(3):
        history.add(history.begin(SIM, "nightly"), PASS)
    (count,) = history.connection.execute("SELECT count(*) FROM launches").fetchone()
    assert count == 1


def test_a_full_disk_loses_nothing_that_was_written(tmp_path):
    with open_history(tmp_path / "h.db") as history:
        run = history.begin(SIM, "nightly")
        history.add(run, PASS)
        (pages,) = history.connection.execute("PRAGMA page_count").fetchone()
        history.connection.execute(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(MachineError, match="database or disk is full; everything written so far is safe"):
            for number in range(1000):
                history.add(run, Result(f"case{number}", "abc", "fail", "x" * 2000))
        assert history.results(run)["gqa"] == PASS
        assert history.connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_a_transaction_is_all_or_nothing(history):
    def half():
        with transaction(history.connection):
            history.connection.execute("INSERT INTO accepted (run, at, who, why) VALUES (1, '', '', '')")

    with pytest.raises(sqlite3.IntegrityError):
        half()
    assert history.connection.execute("SELECT count(*) FROM accepted").fetchone()[0] == 0


def test_a_database_of_the_first_version_is_brought_up_to_date(tmp_path):
    path = tmp_path / "h.db"
    with closing(sqlite3.connect(path)) as old, old:
        old.executescript(MIGRATIONS[0] + "PRAGMA user_version = 1;")
        identity = ", ".join(f"'{value}'" for value in list(vars(SIM).values())[:10])  # without the fingerprint
        old.execute(
            f"INSERT INTO runs VALUES (7, 'abc', '{SIM.line}', 'nightly', '2026-01-01', '2026-01-02', {identity})"
        )
        old.execute("INSERT INTO launches VALUES (1, 'x', ?)", (LAUNCH,))
        fields = (1, 7, "gqa", "abc", "2026-01-01", "pass", "", '{"nmse": 1e-7}', "00ff", 1, "[0.3, 0.1, 0.2]", "")
        old.execute(f"INSERT INTO results VALUES ({', '.join('?' * len(fields))})", fields)
        old.execute("INSERT INTO accepted VALUES (1, 7, '2026-01-03', 'me', 'good')")
    with open_history(path) as history:
        (run,) = history.runs()
        assert (run.uid, run.ended, run.planned) == ("abc", "2026-01-02", 0)
        assert history.results(run) == {"gqa": replace(PASS, seconds=(0.3, 0.1, 0.2))}
        assert [(cell.nmse, cell.time, cell.ratio) for cell in history.cells([run])] == [(1e-7, 0.2, None)]
        assert history.unfinished(run) == []
        assert history.baseline(SIM.line, "nightly") == run
        assert history.connection.execute("PRAGMA user_version").fetchone()[0] == VERSION
        assert history.connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_cases_of_the_second_version_get_their_op_from_the_sizes_that_were_kept(tmp_path):
    path = tmp_path / "h.db"
    sizes = {"hsk": 64, "hsv": 32, "n_head": 8, "n_head_kv": 2, "n_q": 7, "n_kv": 512, "n_seq": 3}
    more = {"type_K": "q8_0", "type_V": "f16", "mask": "causal", "sinks": True, "max_bias": 8.0, "logit_softcap": 0.0}
    kept = {"name": "gqa", "digest": "abc", "scenario": "gqa", "n_kv_max": 0} | sizes | more
    with closing(sqlite3.connect(path)) as old, old:
        for number, script in enumerate(MIGRATIONS[:2]):
            old.create_function("median", 1, lambda text: None)
            old.executescript(script + f"PRAGMA user_version = {number + 1};")
        old.execute("INSERT INTO cases VALUES ('gqa', 'abc', ?)", (json.dumps(kept),))
    with open_history(path) as history:
        run = history.begin(SIM, "nightly")
        history.add(run, PASS)
        case = history.cases(run)["gqa"]
    op = Op.contiguous(Sizes(3, 8, 2, 7, 512, 64, 32), Params(0.125, 8.0), ("q8_0", "f16"), mask=True, sinks=True)
    assert case == StoredCase("gqa", "abc", "gqa", "causal", op)


def test_making_one_database_at_once(tmp_path):
    """SQLite does not wait for a lock when it turns on WAL, so the second process has to."""
    problems = []

    def make(path):
        try:
            with open_history(path):
                pass
        except (InputError, LostError) as error:
            problems.append(error)

    for number in range(100):
        threads = [threading.Thread(target=make, args=(tmp_path / f"{number}.db",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert problems == []


def test_merging_imports_newer_results(history, tmp_path):
    """A run is merged while it is running and again when it has ended: no result is missing or duplicated."""
    with open_history(tmp_path / "other.db") as other:
        run = other.begin(SIM, "nightly", planned=2)
        other.add(run, PASS)
        assert history.merge(other) == (1, 1)
        assert history.runs()[0].ended is None
        packed = PackedMap(2, 3, 1, 1, b"x")
        other.add(run, replace(PASS, name="mha", status="fail", error_map=packed))
        other.add(run, replace(PASS, status="lost"))
        other.end(run)
        other.accept(run, "me", "good")
        assert history.merge(other) == (0, 2)
        assert history.merge(other) == (0, 0)
    (merged,) = history.runs()
    assert {name: result.status for name, result in history.results(merged).items()} == {"mha": "fail", "gqa": "lost"}
    assert history.error_maps(merged) == {"mha": packed}
    assert merged.ended
    assert history.accepted(merged) == "me: good"
    assert history.connection.execute("SELECT count(*) FROM accepted").fetchone()[0] == 1


@pytest.mark.parametrize("second", ["2026-11-24T23:00:00.999+00:00", "2026-11-24T22:59:00.000+00:00"])
def test_a_result_is_newer_than_the_one_it_replaces_whatever_the_clock_says(history, tmp_path, monkeypatch, second):
    with open_history(tmp_path / "other.db") as other:
        run = other.begin(SIM, "nightly", planned=1)
        monkeypatch.setattr("fattn_probe.daily.regress.history.now", lambda: "2026-11-24T23:00:00.999+00:00")
        other.add(run, PASS)
        assert history.merge(other) == (1, 1)
        monkeypatch.setattr("fattn_probe.daily.regress.history.now", lambda: second)
        other.add(run, replace(PASS, status="lost"))
        assert history.merge(other) == (0, 1)


def test_the_shards_of_a_night_are_one_run(tmp_path):
    shards = [Shard(number, 3) for number in (1, 2, 3)]
    for shard in shards:
        with open_history(tmp_path / f"{shard.number}.db") as history:
            part = RunPart(shard, "job 17")
            here = Identity(**{**vars(SIM), "engine": "cuda", "machine": f"node{shard.number}"})
            run = history.begin(part.of(here), "nightly", part, 1)
            history.add(run, replace(PASS, name=f"case{shard.number}"))
            history.end(run, shard)
            assert history.run(run.uid).ended is None
    with open_history(tmp_path / "all.db") as whole:
        for shard in shards:
            assert whole.unfinished(whole.runs()[0]) if whole.runs() else True
            with open_history(tmp_path / f"{shard.number}.db") as one:
                whole.merge(one)
        (run,) = whole.runs()
        assert sorted(whole.results(run)) == ["case1", "case2", "case3"]
        assert (run.planned, whole.unfinished(run)) == (3, [])
        assert run.ended


def test_a_night_of_another_name_or_source_is_another_run(history):
    part = RunPart(Shard(1, 2), "17")
    run = history.begin(SIM, "nightly", part)
    assert history.begin(SIM, "nightly", part).uid == run.uid
    assert history.begin(SIM, "nightly", replace(part, night="18")).uid != run.uid
    assert history.begin(replace(SIM, source="pypi:x==2"), "nightly", part).uid != run.uid


@given(st.lists(st.text("0123456789abcdef", min_size=16, max_size=16), unique=True), st.integers(1, 20))
def test_each_case_is_in_exactly_one_shard(digests, of):
    for digest in digests:
        assert sum(Shard(number, of).has(digest) for number in range(1, of + 1)) == 1


def test_shards_are_about_as_large_as_each_other():
    sizes = [sum(Shard(number, 8).has(f"{digest:016x}") for digest in range(4000)) for number in range(1, 9)]
    assert sum(sizes) == 4000
    assert max(sizes) < 1.2 * min(sizes)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "-1/2", ""])
def test_text_that_is_not_a_shard(text):
    with pytest.raises(InputError, match="allowed: K/N"):
        parse_shard(text)


WRITER = """
import sys
from pathlib import Path
from fattn_probe.daily.regress.history import open_history
from fattn_probe.daily.regress.records import Identity, Result
path, suite, number = sys.argv[1:]
with open_history(Path(path)) as history:
    run = history.begin(Identity(*"abcdefghij"), suite)
    for number in range(int(number)):
        history.add(run, Result(f"case{number}", "d", "fail", suite * 3000))
        print(number, flush=True)
    history.end(run)
"""


def writer(path, suite="x", number=10**9):
    return [sys.executable, "-c", WRITER, str(path), suite, str(number)]


@pytest.mark.parametrize("seconds", [0.013, 0.21, *at_night(0.0, 0.05)])
def test_a_writer_that_is_killed_loses_at_most_the_case_in_flight(tmp_path, seconds):
    path = tmp_path / "h.db"
    with subprocess.Popen(writer(path), stdout=subprocess.PIPE, text=True) as writing:
        said = writing.stdout.readline()
        time.sleep(seconds)
        os.kill(writing.pid, signal.SIGKILL)
        said += writing.stdout.read()
    written = said.count("\n")  # whole lines: the last one may have been cut
    with open_history(path) as history:
        assert history.connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        (run,) = history.runs()
        assert run.ended is None
        assert set(history.results(run)) >= {f"case{number}" for number in range(written)}
        assert len(history.results(run)) <= written + 1


def test_two_processes_with_two_caches_write_one_history(tmp_path):
    """SQLite's own locks protect it, not one in a cache."""
    path = tmp_path / "h.db"
    caches = {name: {**os.environ, "FATTN_PROBE_CACHE": str(tmp_path / name)} for name in "pq"}
    writers = [
        subprocess.Popen(writer(path, name, 100), env=cache, stdout=subprocess.DEVNULL)
        for name, cache in caches.items()
    ]
    assert [one.wait() for one in writers] == [0, 0]
    with open_history(path) as history:
        assert history.connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        found = {run.suite: history.results(run) for run in history.runs()}
        assert all(run.ended for run in history.runs())
    expected = {f"case{number}" for number in range(100)}
    assert {name: set(results) for name, results in found.items()} == {"p": expected, "q": expected}
    assert all(result.reason == name * 3000 for name, results in found.items() for result in results.values())


@contextmanager
def as_nobody():
    """Without root's permission to write everywhere."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_database_in_a_folder_that_may_not_be_written():
    with tempfile.TemporaryDirectory() as name:
        folder, path = Path(name), Path(name) / "h.db"
        with open_history(path) as history:
            history.add(history.begin(SIM, "nightly"), PASS)
        path.chmod(0o444)
        folder.chmod(0o555)
        try:
            with as_nobody(), pytest.raises(MachineError, match=r"h\.db: .*readonly"), open_history(path) as history:
                history.begin(SIM, "nightly")
        finally:
            folder.chmod(0o755)
        with open_history(path) as history:
            assert history.results(history.runs()[0]) == {"gqa": PASS}


def test_a_disk_that_is_really_full_ends_the_writer_with_one_message(tmp_path):
    """The operating system refuses to write further, as it does on a full disk or over a quota."""
    path = tmp_path / "h.db"

    def little_room():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))

    done = subprocess.run(writer(path), capture_output=True, text=True, timeout=60, check=False, preexec_fn=little_room)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("fattn_probe.base.errors.MachineError: history")
    assert "everything written so far is safe" in done.stderr
    written = done.stdout.count("\n")
    assert written > 10
    with open_history(path) as history:
        assert history.connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert set(history.results(history.runs()[0])) == {f"case{number}" for number in range(written)}


def test_settings_and_findings_are_kept_and_merged(tmp_path):
    finding = Finding("race", "race: two warps", "f<1>", "a.cuh", 7, (0, 1, 0), (3, 2, 0), ("f at a.cuh:7",))
    found = replace(PASS, status="fail", finding=finding, checks=(Check("deterministic", True, False, "x"),))
    found = replace(found, sampled=Sampled(3, 9), warning="mean error", missing="no model", unlike_base="base: other")
    settings = Settings(Checks(model="never", sample=20, repeat=2), "gqa")
    with open_history(tmp_path / "a.db") as a, open_history(tmp_path / "b.db") as b:
        a.add(a.begin(SIM, "nightly", settings=settings), found)
        b.merge(a)
        (run,) = b.runs()
        assert run.settings == settings
        assert b.results(run) == {PASS.name: found}
        document = json.loads(json.dumps(run_json(run)))
    asked = {"model": "never", "sample": 20, "repeat": 2, "batch_invariance": 0}
    assert document["checks"] == asked | {"roundings": False, "kernels": False, "order": 0, "predictions": True}
    assert (document["filter"], document["identity"]["device"]) == ("gqa", SIM.device)


def test_reading_writes_nothing(tmp_path):
    path = tmp_path / "h.db"
    with open_history(path) as history:
        history.add(history.begin(SIM, "nightly"), PASS)
    before = path.read_bytes()
    with open_history(path, reading=True) as history:
        assert history.results(history.runs()[0]) == {PASS.name: PASS}
        with pytest.raises(MachineError, match="readonly"):
            history.begin(SIM, "nightly")
    assert path.read_bytes() == before


def test_one_run_is_judged_by_its_name(tmp_path):
    """The last run passes, and the one before it does not."""
    path = tmp_path / "h.db"
    with open_history(path) as history:
        results = [Result("gqa", "d", status, "NMSE 1") for status in ("pass", "fail", "pass")]
        runs = [night(history, result, planned=1) for result in results]
        history.accept(runs[0], "me", "good")
        assert [run.id for run in history.nights(runs[1])] == [runs[0].id, runs[1].id]
    judge = ("history", "judge", "--history", path)
    fattn_probe(*judge)
    assert answer(*judge, runs[1].uid[:12], code=6)["runs"][0]["uid"] == runs[1].uid
    fattn_probe(*judge, runs[2].uid)
    assert "no runs have names that begin with 'zz'" in fattn_probe(*judge, "zz", code=2).stderr
    assert "name one run, or a suite" in fattn_probe(*judge, "zz", "--suite", "x", code=2).stderr


@pytest.mark.parametrize(
    ("runs", "words", "said"),
    [
        (1, ["judge", "--suite", "nightli"], "it has no runs of suite 'nightli', only of nightly"),
        (1, ["report", "page.html", "--suite", "nightli"], "it has no runs of suite 'nightli', only of nightly"),
        (1, ["accept", "--last", "--why", " "], "--why is empty"),
        (1, ["accept", "--last", "--why", "x"], "(sim:h200) has no cases; accept a run that finished and has cases"),
        (0, ["judge"], "h.db: it has no runs\n"),
        (0, ["accept", "--last", "--why", "x"], "h.db: it has no runs\n"),
    ],
)
def test_what_judges_nothing_is_no_pass(runs, words, said, tmp_path):
    """A suite that is misspelt ended with 0 and without a word."""
    with open_history(tmp_path / "h.db") as history:
        for _ in range(runs):
            night(history)
    done = fattn_probe("history", *words, "--history", "h.db", cwd=tmp_path, code=2)
    assert (said in done.stderr, done.stdout) == (True, ""), done.stderr
    assert not (tmp_path / "page.html").exists()


def test_a_run_that_did_not_finish_is_no_baseline(tmp_path):
    path = tmp_path / "h.db"
    with open_history(path) as history:
        good = night(history, PASS)
        stopped, empty = (night(history, *results, identity=GPU, ended=False) for results in ([PASS], []))
        with pytest.raises(InputError, match=f"run {stopped.uid[:8]} .* did not finish; accept a run"):
            history.accept(stopped, "me", "x")
    said = fattn_probe("history", "accept", "--last", "--why", "x", "--history", path).stderr
    skipped = "skipped 1 run that did not finish or have no cases"
    assert said == f"accepted {good.uid[:8]} (sim:h200, nightly)\n{skipped}\n"
    assert f"run {empty.uid[:8]} did not finish\n" in fattn_probe("history", "judge", "--history", path, code=4).stderr
    listed = fattn_probe("history", "list", "--history", path).stdout
    assert (empty.uid[:8] in listed, "and 1 run without cases (--json has all)" in listed) == (False, True)
