import sqlite3
import threading

import pytest

from fattn_probe.errors import InputError, LostError
from fattn_probe.regress.history import open_history
from fattn_probe.regress.records import Identity, Result
from fattn_probe.regress.schema import VERSION, transaction

SIM = Identity("here", "sim:h200", "9.0", "", "sim", "release", "pypi:x==1", "11063", "", "0.1.0")
LAUNCH = '{"order":0,"kernel":"f<1>","grid":[8,1,1],"block":[32,4,1],"shared":0}'
PASS = Result("gqa", "abc", "pass", "", {"nmse": 1e-7}, "00ff", LAUNCH, (0.1, 0.2))


@pytest.fixture
def history(tmp_path):
    with open_history(tmp_path / "history.db") as found:
        yield found


def test_a_result_comes_back_as_it_was(history):
    run = history.begin(SIM, "nightly")
    history.add(run, PASS)
    assert history.results(run) == {"gqa": PASS}
    assert history.results(run)["gqa"].kernels[0].spelling == "f<1>"


def test_a_case_run_again_has_one_result(history):
    run = history.begin(SIM, "nightly")
    history.add(run, PASS)
    again = Result("gqa", "abc", "fail", "wrong")
    history.add(run, again)
    assert history.results(run) == {"gqa": again}


def test_the_baseline_is_the_last_accepted_run_of_the_line_and_suite(history):
    first, second = history.begin(SIM, "nightly"), history.begin(SIM, "nightly")
    assert history.baseline(SIM.line, "nightly") is None
    history.accept(first, "me", "the first")
    history.accept(second, "me", "looked at")
    assert history.baseline(SIM.line, "nightly") == second
    assert history.baseline(SIM.line, "quick") is None
    history.accept(first, "me", "back to it")
    assert history.baseline(SIM.line, "nightly") == first


def test_a_line_goes_on_through_sources(history):
    newer = Identity(**{**vars(SIM), "source": "pypi:x==2", "build_number": "11549"})
    for identity, output in ((SIM, "00"), (newer, "11")):
        history.add(history.begin(identity, "nightly"), Result("gqa", "abc", "pass", output=output))
    assert [result.output for _, result in history.series(SIM.line, "gqa")] == ["00", "11"]


def test_times_of_a_real_gpu_are_the_machines():
    gpu = Identity("a", "NVIDIA H200", "9.0", "580", "cuda", "release", "s", "1", "", "0")
    assert gpu.line != Identity(**{**vars(gpu), "machine": "b"}).line
    assert SIM.line == Identity(**{**vars(SIM), "machine": "there"}).line


def test_merging_twice_changes_nothing(history, tmp_path):
    with open_history(tmp_path / "other.db") as other:
        run = other.begin(SIM, "nightly")
        other.add(run, PASS)
        other.end(run)
        assert history.merge(other) == 1
        assert history.merge(other) == 0
    (merged,) = history.runs()
    assert merged.ended == run.ended or merged.ended is not None
    assert history.results(merged) == {"gqa": PASS}


def test_pruning_keeps_what_was_accepted(history):
    kept, gone = history.begin(SIM, "nightly"), history.begin(SIM, "nightly")
    for run in (kept, gone):
        history.add(run, PASS)
    history.accept(kept, "me", "good")
    assert history.prune("9999") == 1
    assert [run.uid for run in history.runs()] == [kept.uid]
    assert history.results(kept) == {"gqa": PASS}


def test_the_same_launches_are_kept_once(history):
    for _ in range(3):
        history.add(history.begin(SIM, "nightly"), PASS)
    (count,) = history.connection.execute("SELECT count(*) FROM launches").fetchone()
    assert count == 1


def test_a_run_by_the_beginning_of_its_uid(history):
    run = history.begin(SIM, "nightly")
    assert history.run(run.uid[:8]) == run
    with pytest.raises(InputError, match="no runs begin with 'zz'"):
        history.run("zz")


def test_what_was_written_is_there_without_a_close(tmp_path):
    with open_history(tmp_path / "h.db") as writer:
        writer.add(writer.begin(SIM, "nightly"), PASS)
        with open_history(tmp_path / "h.db") as reader:
            assert reader.results(reader.runs()[0]) == {"gqa": PASS}
            assert reader.connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_two_runs_at_once_on_one_database(tmp_path):
    path = tmp_path / "h.db"

    def write(suite):
        with open_history(path) as history:
            run = history.begin(SIM, suite)
            for number in range(50):
                history.add(run, Result(f"case{number}", "abc", "pass"))
            history.end(run)

    threads = [threading.Thread(target=write, args=(suite,)) for suite in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with open_history(path) as history:
        assert [len(history.results(run)) for run in history.runs()] == [50, 50]
        assert all(run.ended for run in history.runs())


def test_a_database_of_a_newer_version(tmp_path):
    path = tmp_path / "h.db"
    with open_history(path) as history:
        history.connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    with (
        pytest.raises(InputError, match=f"is of version {VERSION + 1}, made by a newer fattn-probe"),
        open_history(path),
    ):
        pass


def test_a_file_that_is_no_database(tmp_path):
    path = tmp_path / "h.db"
    path.write_text("no database at all, " * 100)
    with pytest.raises(InputError, match="file is not a database"), open_history(path):
        pass


def test_a_database_that_may_not_be_written(tmp_path):
    path = tmp_path / "h.db"
    with open_history(path) as history:
        run = history.begin(SIM, "nightly")
        history.connection.execute("PRAGMA query_only = ON")
        with pytest.raises(InputError, match="readonly"):
            history.add(run, PASS)
        assert history.results(run) == {}


def test_a_full_disk_loses_nothing_that_was_written(tmp_path):
    with open_history(tmp_path / "h.db") as history:
        run = history.begin(SIM, "nightly")
        history.add(run, PASS)
        (pages,) = history.connection.execute("PRAGMA page_count").fetchone()
        history.connection.execute(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(LostError, match="database or disk is full; nothing that was written before is lost"):
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
