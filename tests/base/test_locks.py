"""Locks of files: between processes, whatever their caches, and on what a file is replaced by."""

import json
import os
import subprocess
import sys

import pytest

from fattn_probe.base.files import lock_of_file, replacing

WORKER = """
import json, sys
from pathlib import Path
from fattn_probe.base.files import replacing
from fattn_probe.base.files import lock_of_file
path = Path(sys.argv[1])
for _ in range(200):
    with lock_of_file(path):
        number = json.loads(path.read_text() or "0")
        with replacing(path) as part:
            part.write_text(str(number + 1))
"""


def test_two_processes_with_two_caches_change_one_file(tmp_path):
    path = tmp_path / "results.json"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, path], env={**os.environ, "FATTN_PROBE_CACHE": str(tmp_path / name)}
        )
        for name in ("one", "two")
    ]
    assert [child.wait() for child in children] == [0, 0]
    assert json.loads(path.read_text()) == 400
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


HISTORY = """
import sys
from pathlib import Path
from fattn_probe.base import documents
for number in range(100):
    documents.append(Path(sys.argv[1]), [{"from": sys.argv[2], "number": number}] * 3)
"""


@pytest.mark.parametrize("name", ["verdicts.jsonl", "verdicts.jsonl.gz"])
def test_two_processes_with_two_caches_append_to_one_file(tmp_path, name):
    from fattn_probe.base import documents

    path = tmp_path / name
    children = [
        subprocess.Popen(
            [sys.executable, "-c", HISTORY, path, cache], env={**os.environ, "FATTN_PROBE_CACHE": str(tmp_path / cache)}
        )
        for cache in ("one", "two")
    ]
    assert [child.wait() for child in children] == [0, 0]
    items = list(documents.read(path, "verdict"))
    assert sorted({(item["from"], item["number"]) for item in items}) == [
        (cache, number) for cache in ("one", "two") for number in range(100)
    ]
    assert len(items) == 600


def test_a_held_lock_is_not_waited_for(tmp_path):
    with lock_of_file(tmp_path / "x"):
        with pytest.raises(BlockingIOError), lock_of_file(tmp_path / "x", wait=False):
            pass
        with replacing(tmp_path / "x") as part:
            part.touch()
        with lock_of_file(tmp_path / "x", wait=False):
            pass
