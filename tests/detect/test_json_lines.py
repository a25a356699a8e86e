"""Files with a JSON object on each line."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from typing import Any

import pytest

from fattn_probe.detect.json_lines import append, pack, read
from fattn_probe.errors import InputError

ITEMS: list[dict[str, Any]] = [{"name": "ü", "set": [1, 2]}, {"name": "\n"}, {}]
NAMES = pytest.mark.parametrize("name", ["results.jsonl", "results.jsonl.gz"])


def items(path):
    return list(read(path, "result"))


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """An empty cache, which has the locks."""
    monkeypatch.setenv("FATTN_PROBE_CACHE", str(tmp_path_factory.mktemp("cache")))


@NAMES
def test_what_was_appended_is_read(tmp_path, name):
    path = tmp_path / "new" / name
    assert items(path) == []
    append(path, ITEMS[:2])
    append(path, ITEMS[2:])
    assert items(path) == ITEMS
    pack(path, "result")
    append(path, ITEMS)
    assert items(path) == [*ITEMS, *ITEMS]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_last_line_that_was_cut_is_left_out_and_spoils_no_later_one(tmp_path, cut):
    path = tmp_path / "results.jsonl"
    append(path, [{"a": 1}, {"b": 22}])
    path.write_bytes(path.read_bytes()[:-cut])
    kept = [{"a": 1}, {"b": 22}] if cut == 1 else [{"a": 1}]
    assert items(path) == kept
    append(path, [{"c": 3}])
    assert items(path) == [*kept, {"c": 3}]
    assert len(path.read_text().splitlines()) == len(kept) + 1


def test_any_other_bad_line_is_named(tmp_path):
    path = tmp_path / "results.jsonl"
    for text in ('{"a": 1}\n{"b"\n', '{"a": 1}\n{"b"\n{}\n', '{"a": 1}\n7', '{"a": 1}\n[]\n'):
        path.write_text(text)
        with pytest.raises(InputError, match=r"results.jsonl:2: is not a result"):
            items(path)
    path.write_bytes(b"\xff\n")
    with pytest.raises(InputError, match=r"results.jsonl: cannot read the results"):
        items(path)


def test_empty_lines_are_none(tmp_path):
    """Versions before this one began what they appended with a new line."""
    path = tmp_path / "results.jsonl"
    path.write_text('\n{"a": 1}\n\n{"b": 2}\n')
    assert items(path) == [{"a": 1}, {"b": 2}]


@NAMES
def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, name, monkeypatch):
    path = tmp_path / name
    append(path, ITEMS)
    before, write = path.read_bytes(), FileIO.write

    class Full(FileIO):
        def write(self, data):
            return write(self, data[:5])

    monkeypatch.setattr("fattn_probe.detect.json_lines.FileIO", Full)
    with pytest.raises(OSError, match="No space left"):
        append(path, ITEMS)
    assert path.read_bytes() == before


@NAMES
def test_nothing_is_lost_while_a_file_is_packed(tmp_path, name):
    path = tmp_path / name

    def work(number: int) -> None:
        append(path, [{"number": number}])
        pack(path, "result")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(40)))
    assert sorted(item["number"] for item in items(path)) == list(range(40))


def test_a_packed_text_that_was_cut_is_packed_without_its_last_line(tmp_path):
    path = tmp_path / "results.jsonl.gz"
    path.write_bytes(gzip.compress(f'{json.dumps(ITEMS[0])}\n{{"na'.encode()))
    assert items(path) == ITEMS[:1]
    pack(path, "result")
    append(path, ITEMS)
    assert items(path) == [ITEMS[0], *ITEMS]
