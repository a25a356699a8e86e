"""Every night: `regress`, `history` and builds are killed at random moments, and files of a cache are damaged."""

import json
import os
import random
import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from fattn_probe.daily.regress.history import open_history
from fattn_probe.daily.regress.records import Identity, Result
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from tests.as_user import fattn_probe, killed
from tests.daily.regress.test_resume import Place, read_of

pytestmark = [pytest.mark.night, pytest.mark.hostile]

SEED = os.environ.get("FATTN_PROBE_SEED") or date.today().isoformat()
REGRESS, HISTORY = 80, 60
CASES = 24
RESULTS = 1000  # in each of the histories
HERE = Identity("here", "sim:h200", "9.0", "", "sim", "release", "pypi:a==1", "1", "", "0.1.0")


@pytest.fixture
def temporary(monkeypatch):
    """An empty $TMPDIR with a short path: that of a socket is at most 107 characters long."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.mark.build
@pytest.mark.network
@pytest.mark.parametrize("number", range(REGRESS))
def test_a_regress_that_is_killed(number, tmp_path, temporary):
    """Once or several times: no result is lost, made again, mixed with others or left without its run.

    After a call that was not killed in time, the next one begins anew.
    """
    chance = random.Random(f"{SEED} regress {number}")
    place = Place(tmp_path)
    place.write(more=range(100, 100 + CASES))
    before = dict[tuple[str, str], str]()
    for _ in range(chance.randint(1, 3)):
        killed(place.words("--resume"), chance.uniform(0, 8))
        after = read_of(place, place.times, {})
        assert {key: after.get(key) for key in before} == before
        before = after
    calls = 1 + read_of(place, lambda: place.rows("SELECT count(ended) FROM calls")[0][0], 0)
    runs, _ = place.regress("--resume")
    again = place.times()
    assert {key: again.get(key) for key in before} == before
    assert [run["counts"]["pass"] for run in runs] in ([3, CASES], [CASES])
    assert place.rows("SELECT count(*), count(ended) FROM runs") == [(2 * calls, 2 * calls)]
    assert place.rows("SELECT status, count(*) FROM results GROUP BY 1") == [("pass", calls * (3 + CASES))]
    assert place.rows("PRAGMA integrity_check") == [("ok",)]
    assert {path.name for path in tmp_path.iterdir()} <= {"h.db", "s.yaml", "tiny.yaml", "more.yaml"}
    assert list(temporary.glob("fattn-probe-*/*")) == []


@pytest.fixture(scope="module")
def histories(tmp_path_factory):
    """A folder with two histories, each of two runs."""
    folder = tmp_path_factory.mktemp("histories")
    for name in ("ours", "theirs"):
        with open_history(folder / f"{name}.db") as history:
            for release in ("1", "2"):
                run = history.begin(replace(HERE, machine=name, source=f"pypi:a=={release}"), "nightly")
                for number in range(RESULTS):
                    history.add(run, Result(f"case{number}", "d", "pass", f"{name} {release}"))
                history.end(run)
    return folder


COMMANDS = {
    "merge": ("merge", "theirs.db"),
    "accept": ("accept", "--last", "--why", "x"),
    "prune": ("prune", "2999-01-01"),
    "report": ("report", "page.html"),
}


def contents(path):
    """What a history holds, without the numbers of its rows and the times of acceptances."""
    queries = (
        "SELECT uid, name, status, reason FROM results JOIN runs ON runs.id = run",
        "SELECT uid, suite, started, ended FROM runs",
        "SELECT DISTINCT uid, why FROM accepted JOIN runs ON runs.id = run",
        "PRAGMA integrity_check",
    )
    with closing(sqlite3.connect(path)) as opened:
        return [sorted(opened.execute(query), key=str) for query in queries]


@pytest.fixture(scope="module")
def undisturbed(histories, tmp_path_factory):
    """The history after each command that nothing disturbed."""
    found = {}
    for name, words in COMMANDS.items():
        folder = tmp_path_factory.mktemp(name) / "h"
        shutil.copytree(histories, folder)
        fattn_probe("history", *words, "--history", "ours.db", cwd=folder)
        found[name] = contents(folder / "ours.db")
    return found


@pytest.mark.parametrize("number", range(HISTORY))
def test_a_history_command_that_is_killed(number, histories, undisturbed, tmp_path, monkeypatch):
    """Run again, it leaves what one that is not killed leaves."""
    chance = random.Random(f"{SEED} history {number}")
    name = chance.choice(sorted(COMMANDS))
    shutil.copytree(histories, tmp_path / "h")
    monkeypatch.chdir(tmp_path / "h")
    words = ("history", *COMMANDS[name], "--history", "ours.db")
    killed(words, chance.uniform(0.2, 2))
    page = tmp_path / "h/page.html"
    assert not page.exists() or page.read_text().rstrip().endswith("</html>")
    fattn_probe(*words)
    assert contents(tmp_path / "h/ours.db") == undisturbed[name]
    left = {path.name for path in (tmp_path / "h").iterdir()}
    assert {name.removesuffix("-wal").removesuffix("-shm") for name in left} <= {"ours.db", "theirs.db", "page.html"}


ROUNDS, FILES, KILLS = 100, 2, 100
COMPARED = ("gqa", "decode", "--on", "sim:h200")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache with a source and all that one `compare` makes, its objects and an empty $TMPDIR beside it."""
    source = resolve(DEFAULT_SOURCE).root.parent
    folder = tmp_path_factory.mktemp("cache")
    shutil.copytree(source, folder / "sources" / source.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FATTN_PROBE_CACHE", str(folder))
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))
        patch.delenv("CCACHE_DIR", raising=False)
        yield folder


@pytest.fixture(scope="module")
def whole(cache):
    """What `compare` says in a whole cache."""
    return compared()[0]


def compared():
    """(what `compare` says of each case, its lines on stderr)."""
    done = fattn_probe("compare", *COMPARED, "--json")
    rows = json.loads(done.stdout)["rows"]
    assert {row["status"] for row in rows} == {"pass"}
    return [(row["case"], row["kernels"], row["output"], row["metrics"]) for row in rows], done.stderr.splitlines()


def nothing_is_said():
    """Whether the cases run without a message, since the run before has mended all; a judgement would take longer."""
    return fattn_probe("run", *COMPARED).stderr == ""


def truncate(path, chance):
    os.truncate(path, chance.randrange(path.stat().st_size + 1))


def flip(path, chance):
    data = bytearray(path.read_bytes() or b"x")
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    rewrite(path, data)


def overwrite(path, chance):
    data = bytearray(path.read_bytes())
    start = chance.randrange(len(data) + 1)
    data[start : start + 4096] = chance.randbytes(min(4096, len(data) - start))
    rewrite(path, data)


def grow(path, chance):
    rewrite(path, path.read_bytes() + chance.randbytes(chance.randrange(1, 9000)))


def remove(path, chance):
    path.parent.chmod(0o755)
    path.unlink()


def replace_by_folder(path, chance):
    remove(path, chance)
    path.mkdir()


def rewrite(path, data):
    """In place, as a program with a bug does: the file keeps its inode."""
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()


DAMAGES = (truncate, flip, overwrite, grow, remove, replace_by_folder)


def damaged(cache, chance):
    """Damage FILES files; each from a kind of file, as most are headers and sources. Returns what was done."""
    kinds: dict[str, list[Path]] = {}
    for path in sorted(path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"):
        parts = path.relative_to(cache).parts
        kinds.setdefault("/".join((parts[0], *parts[2:3]) if parts[0] == "builds" else parts[:1]), []).append(path)
    done = []
    for _ in range(FILES):
        path = chance.choice(kinds[chance.choice(sorted(kinds))])
        damage = chance.choice(DAMAGES)
        if path.is_file():
            damage(path, chance)
            done.append(f"{damage.__name__} {path.relative_to(cache)}")
    return done


@pytest.mark.build
@pytest.mark.network
@pytest.mark.parametrize("number", range(ROUNDS))
def test_damaged_files_are_made_again(cache, whole, number):
    print("\n".join([SEED, *damaged(cache, random.Random(f"{SEED} damage {number}"))]))
    found, said = compared()
    assert found == whole, said
    assert nothing_is_said()


def left_behind(cache):
    """What a process makes on the way, in the cache and in $TMPDIR."""
    parts = [*(cache / "parts").iterdir()] if (cache / "parts").is_dir() else []
    return [*parts, *cache.rglob("*.part"), *Path(os.environ["TMPDIR"]).glob("fattn-probe-*/*")]


@pytest.mark.build
@pytest.mark.network
@pytest.mark.parametrize("number", range(KILLS))
def test_a_build_that_is_killed(cache, whole, number):
    """At any moment of it, from an empty cache or from what the kills before have left."""
    chance = random.Random(f"{SEED} kill {number}")
    if chance.random() < 0.5:
        for name in chance.sample(["builds", "headers", "kernels", "tables", "resources"], 2):
            for path, _, _ in os.walk(cache / name):
                Path(path).chmod(0o755)
            shutil.rmtree(cache / name, ignore_errors=True)
    again = chance.random() < 0.3
    words = ["build", "gqa", "decode", "--engine", "sim", "--arch", "90", *["--no-ccache"] * again]
    killed(words, chance.uniform(0, 20 if again else 8))
    found, said = compared()
    assert found == whole, said
    assert not any("damaged" in line for line in said), said
    assert left_behind(cache) == []
    assert nothing_is_said()
