"""Documents, and files with a JSON object on each line: what is written is read again, or refused with its place."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from io import FileIO
from typing import Any

import pytest

from fattn_probe.base.cache import Kind, write_document
from fattn_probe.base.documents import CHUNK, Document, append, pack, read
from fattn_probe.base.errors import InputError


@dataclass(frozen=True)
class Inner:
    at: tuple[int, int] | None = None


@dataclass(frozen=True)
class Thing:
    name: str
    ratio: float = 0.0
    parts: tuple[Inner, ...] = ()


THING = Thing("é", float("inf"), (Inner((1, 2)), Inner()))
STORED = Document("a thing", Thing)
FILE = Document("a thing", Thing, version=2, indent=1)
KIND = Kind("things", "the thing")


@pytest.mark.parametrize("document", [STORED, FILE])
def test_a_document_is_read_as_it_was_written(document, tmp_path):
    text = document.text(THING)
    assert document.parse(text, "here") == document.parse(text.encode(), "here") == THING
    (tmp_path / "thing.json").write_text(text)
    assert document.read(tmp_path / "thing.json") == THING


def test_keys_are_the_fields_in_their_order_and_missing_ones_have_their_defaults():
    assert STORED.text(THING) == json.dumps(asdict(THING))
    assert FILE.text(THING) == json.dumps({"version": 2} | asdict(THING), indent=1) + "\n"
    assert STORED.parse('{"name": "x", "later": 1}', "here") == Thing("x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "here: not a thing: "),
        ("[]", "here: not a thing: "),
        ('{"version": 2}', "here: not a thing: name: Field required"),
        ('{"version": 2, "name": "x", "parts": [{"at": [1]}]}', r"here: not a thing: parts\.0\.at\.1: Field required"),
        ('{"name": "x"}', "here: a thing of version 1, in an older format; this one knows 2"),
        ('{"version": 3, "name": 4}', "here: a thing of version 3, made by a newer fattn-probe; this one knows 2"),
        ('{"version": "x"}', "here: a thing of version x, in an older format; this one knows 2"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text, message):
    with pytest.raises(InputError, match=f"^{message}"):
        FILE.parse(text, "here")


def test_a_document_without_a_version_is_of_the_first():
    first = replace(FILE, version=1)
    assert first.text(THING) == json.dumps(asdict(THING), indent=1) + "\n"
    assert first.parse('{"name": "x"}', "here") == Thing("x")
    with pytest.raises(InputError, match="of version 2, made by a newer fattn-probe; this one knows 1"):
        first.parse(FILE.text(THING), "here")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no.json: cannot read a thing: No such file"):
        FILE.read(tmp_path / "no.json")


def test_the_cache_remembers_it_until_another_fattn_probe_wrote_there(tmp_path, monkeypatch):
    monkeypatch.setenv("FATTN_PROBE_CACHE", str(tmp_path))
    assert STORED.remembered(KIND, "key") is None
    STORED.remember(KIND, "key", THING)
    assert STORED.remembered(KIND, "key") == THING
    for text in (b'{"other": 1}', b"{", b"[]"):
        write_document(KIND, "key", text)
        assert STORED.remembered(KIND, "key") is None


def test_what_is_no_thing_is_a_mistake():
    with pytest.raises(InputError, match=r"^not a thing: parts: Input should be"):
        FILE.of({"name": "x", "parts": 1})
    with pytest.raises(InputError, match="here: not a thing"):
        FILE.parse("[" * 100_000, "here")


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


@pytest.mark.parametrize("packed", [False, True])
def test_a_killed_append_to_a_packed_file_costs_only_what_it_wrote(tmp_path, packed):
    """One cut member made all verdicts of the file unreadable."""
    path = tmp_path / "results.jsonl.gz"
    append(path, ITEMS)
    if packed:
        pack(path, "result")
    whole = path.read_bytes()
    append(path, [{"c": 3}])
    added = path.read_bytes()[len(whole) :]
    for cut in range(1, len(added) + 1):
        path.write_bytes(whole + added[:-cut])
        assert items(path) == ITEMS, cut
        append(path, [{"d": 4}])
        assert items(path) == [*ITEMS, {"d": 4}], cut


def test_members_larger_than_what_is_unpacked_at_once(tmp_path):
    path = tmp_path / "results.jsonl.gz"
    long = [
        {"name": "".join(chr(0x4E00 + 7 * number % 20000) for number in range(start, start + 9000))} for start in (0, 5)
    ]
    append(path, long)
    assert path.stat().st_size > 2 * CHUNK
    append(path, ITEMS)
    assert items(path) == [*long, *ITEMS]


def test_a_packed_file_that_is_damaged_is_named(tmp_path):
    path = tmp_path / "results.jsonl.gz"
    append(path, ITEMS)
    append(path, ITEMS)
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"results.jsonl.gz: cannot read the results"):
        items(path)


def test_any_other_bad_line_is_named_and_empty_lines_are_none(tmp_path):
    path = tmp_path / "results.jsonl"
    for text in ('{"a": 1}\n{"b"\n', '{"a": 1}\n{"b"\n{}\n', '{"a": 1}\n7', '{"a": 1}\n[]\n'):
        path.write_text(text)
        with pytest.raises(InputError, match=r"results.jsonl:2: is not a result"):
            items(path)
    path.write_bytes(b"\xff\n")
    with pytest.raises(InputError, match=r"results.jsonl: cannot read the results"):
        items(path)
    # Versions before this one began what they appended with a new line.
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

    monkeypatch.setattr("fattn_probe.base.documents.FileIO", Full)
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


def test_a_file_that_is_packed_as_a_whole_takes_less_space(tmp_path):
    path = tmp_path / "results.jsonl.gz"
    for number in range(100):
        append(path, [{"number": number, "words": "of each line"}])
    found, before = items(path), path.stat().st_size
    pack(path, "result")
    assert items(path) == found
    assert path.stat().st_size < before / 5


def test_a_packed_text_that_was_cut_is_packed_without_its_last_line(tmp_path):
    path = tmp_path / "results.jsonl.gz"
    path.write_bytes(gzip.compress(f'{json.dumps(ITEMS[0])}\n{{"na'.encode()))
    assert items(path) == ITEMS[:1]
    pack(path, "result")
    append(path, ITEMS)
    assert items(path) == [ITEMS[0], *ITEMS]
