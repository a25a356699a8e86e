"""Documents: what is written is read again, and what cannot be read is refused with its place."""

import json
from dataclasses import asdict, dataclass, replace

import pytest

from fattn_probe.base.cache import Kind, write_document
from fattn_probe.base.documents import Document
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


def test_its_keys_are_the_fields_in_their_order_after_the_version():
    assert STORED.text(THING) == json.dumps(asdict(THING))
    assert FILE.text(THING) == json.dumps({"version": 2} | asdict(THING), indent=1) + "\n"


def test_missing_keys_have_their_defaults_and_unknown_ones_are_ignored():
    assert STORED.parse('{"name": "x", "later": 1}', "here") == Thing("x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "here: not a thing: "),
        ("[]", "here: not a thing: "),
        ('{"version": 2}', "here: not a thing: name: Field required"),
        ('{"version": 2, "name": "x", "parts": [{"at": [1]}]}', r"here: not a thing: parts\.0\.at\.1: Field required"),
        ('{"name": "x"}', "here: a thing of version 1, of an older format; this one knows 2"),
        ('{"version": 3, "name": 4}', "here: a thing of version 3, made by a newer fattn-probe; this one knows 2"),
        ('{"version": "x"}', "here: a thing of version x, of an older format; this one knows 2"),
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


def test_a_value_of_another_type_is_a_mistake():
    with pytest.raises(InputError, match=r"^not a thing: parts: Input should be"):
        FILE.of({"name": "x", "parts": 1})


def test_json_without_an_end_of_depth_is_a_mistake():
    with pytest.raises(InputError, match="here: not a thing"):
        FILE.parse("[" * 100_000, "here")
