"""Every night: damaged files of a cache, and builds that are killed at random moments."""

import json
import os
import random
import shutil
from datetime import date
from pathlib import Path

import pytest

from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from tests.as_user import fattn_probe, killed

pytestmark = [pytest.mark.night, pytest.mark.hostile, pytest.mark.build, pytest.mark.network]

ROUNDS, FILES, KILLS = 100, 2, 100
SEED = os.environ.get("FATTN_PROBE_SEED") or date.today().isoformat()
CASES = ("gqa", "decode", "--on", "sim:h200")


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
    done = fattn_probe("compare", *CASES, "--json")
    rows = json.loads(done.stdout)["rows"]
    assert {row["status"] for row in rows} == {"pass"}
    return [(row["case"], row["kernels"], row["output"], row["metrics"]) for row in rows], done.stderr.splitlines()


def nothing_is_said():
    """Whether the cases run without a message, since the run before has mended all; a judgement would take longer."""
    return fattn_probe("run", *CASES).stderr == ""


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


@pytest.mark.parametrize("number", range(ROUNDS))
def test_damaged_files_are_made_again(cache, whole, number):
    chance = random.Random(f"{SEED} damage {number}")
    done = damaged(cache, chance)
    print("\n".join([SEED, *done]))
    found, said = compared()
    assert found == whole, said
    assert nothing_is_said()


def left_behind(cache):
    """What a process makes on the way, in the cache and in $TMPDIR."""
    parts = [*(cache / "parts").iterdir()] if (cache / "parts").is_dir() else []
    return [*parts, *cache.rglob("*.part"), *Path(os.environ["TMPDIR"]).glob("fattn-probe-*/*")]


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
