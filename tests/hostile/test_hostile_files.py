"""Captures, suites, patches, device files and histories that are wrong."""

import sqlite3
import struct
from contextlib import closing

import pytest

from fattn_probe.daily.regress.history import open_history
from fattn_probe.daily.regress.schema import VERSION


def gguf(tensors=0, fields=0, rest=b"", version=3):
    """The header of a GGUF file, and the bytes after it."""
    return b"GGUF" + struct.pack("<IQQ", version, tensors, fields) + rest


def text(value):
    return struct.pack("<Q", len(value)) + value


def tensor(*ne, kind=0, offset=0):
    return text(b"x") + struct.pack("<I", len(ne)) + struct.pack(f"<{len(ne)}Q", *ne) + struct.pack("<IQ", kind, offset)


CAPTURES = {
    "empty": b"",
    "cut in the magic": b"GG",
    "head alone": gguf()[:10],
    "another magic": b"PK\x03\x04" + bytes(200),
    "zeros": bytes(4096),
    "noise": bytes(range(256)) * 16,
    "version 0": gguf(version=0),
    "version 99": gguf(version=99),
    "other byte order": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "nothing in it": gguf(),
    "2^63 fields": gguf(fields=2**63),
    "2^63 tensors": gguf(tensors=2**63),
    "a key of 2^60 bytes": gguf(fields=1, rest=struct.pack("<Q", 2**60) + b"x"),
    "a value of no type": gguf(fields=1, rest=text(b"a") + struct.pack("<I", 99)),
    "a text of 2^60 bytes": gguf(fields=1, rest=text(b"a") + struct.pack("<IQ", 8, 2**60)),
    "an array of 2^60": gguf(fields=1, rest=text(b"a") + struct.pack("<IIQ", 9, 4, 2**60)),
    "an array of arrays": gguf(fields=1, rest=text(b"a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 3000),
    "a tensor of 2^60": gguf(tensors=1, rest=tensor(2**60, 1, 1, 1) + bytes(64)),
    "a tensor of 2^126": gguf(tensors=1, rest=tensor(2**63, 2**63, 1, 1) + bytes(64)),
    "a tensor of no type": gguf(tensors=1, rest=tensor(4, kind=999) + bytes(64)),
    "a tensor far away": gguf(tensors=1, rest=tensor(4, offset=2**62) + bytes(64)),
    "200 dimensions": gguf(tensors=1, rest=tensor(*[1] * 200) + bytes(64)),
    "another program's": gguf(fields=1, rest=text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama")),
    "text that is no text": gguf(fields=1, rest=text(b"fattn.case") + struct.pack("<I", 8) + text(b"\xff\xfe")),
}


CAPTURES["4000000 blocks"] = gguf(
    fields=1, rest=text(b"fattn.shared.K.blocks") + struct.pack("<IIQ", 9, 4, 4_000_000) + bytes(16_000_000)
)
"""They made a Python object each: 3 GB, and a minute."""


@pytest.mark.parametrize("name", CAPTURES)
def test_capture(name, probe, tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(CAPTURES[name])
    probe("compare", path, path).refused(2, "a.gguf")


def test_captures_that_are_no_files(probe, fifo, tmp_path):
    for place, said in ((fifo, "a fifo"), (tmp_path, "a folder"), ("/dev/zero", "a device")):
        link = tmp_path / "link.gguf"
        link.unlink(missing_ok=True)
        link.symlink_to(place)
        probe("compare", link, link).refused(2, said)


SUITES = {
    "empty": "",
    "blank": "\n# nothing\n",
    "no mapping": "hello",
    "no cases": "version: 1\nabout: x\n",
    "bad scenario": "version: 1\nabout: x\nscenarios: [bad.yaml]\n",
    "bad device": "version: 1\nabout: x\nscenarios: [op.yaml]\non: [tpu]\n",
    "bad source": "version: 1\nabout: x\nscenarios: [op.yaml]\nsource: nowhere\n",
    "lost nan": "version: 1\nabout: x\nscenarios: [op.yaml]\nlost: .nan\n",
    "repeat zero": "version: 1\nabout: x\nscenarios: [op.yaml]\nrepeat: 0\n",
    "deep": "[" * 3000,
    "null byte": "about: \x00",
}


@pytest.mark.parametrize("name", SUITES)
def test_suite(name, regress, probe, here):
    (here / "bad.yaml").write_text("version: 1\n")
    if name == "bad source":
        (here / "suite.yaml").write_text(SUITES[name])
        probe("regress", "suite.yaml", "--history", "h.db").refused(2)
    else:
        regress(SUITES[name], version="").refused(2)


@pytest.mark.parametrize("flag", ["(", "[", "*", "(?P<a>", "x{99999999999}", "a\\"])
def test_filter(flag, regress):
    regress("scenarios: [op.yaml]", "--filter", flag).refused(2, "--filter")


def test_a_pattern_that_backtracks_without_end_is_named_by_its_place(regress, op, tmp_path, monkeypatch):
    monkeypatch.setattr("fattn_probe.base.regex.SEARCH_SECONDS", 0.1)
    (tmp_path / ("a" * 60 + ".yaml")).write_text(op.read_text())
    regress("scenarios: [a*.yaml]", "--filter", "(a+)+!").refused(2, "--filter", "too long")
    ended = regress("scenarios: [a*.yaml]\nonly: ^(a|aa)+$x")
    ended.refused(2, "`only` of the suite '^(a|aa)+$x'", "too long")
    assert "--filter" not in ended.said
    regress("scenarios: [a*.yaml]\nonly: b").refused(2, "no case name matches `only` of the suite 'b'")
    entry = "entries: [{name: e, scenarios: [a*.yaml], only: ^(a|aa)+$x}]"
    regress(entry).refused(2, "`only` of entry e", "too long")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("on: ['']", "`on` of the suite '': not a device"),
        ("on: [sim:h20]", "`on` of the suite 'sim:h20': no device 'h20'; nearest: h200"),
        ("entries: [{name: e, scenarios: [op.yaml], on: [tpu]}]", "`on` of entry e 'tpu': not a device"),
        ("check: {order: 99999999}", "suite.yaml:4: check.order: found 99999999, allowed: at most 1000"),
        ("check: {repeat: 1000000000}", "suite.yaml:4: check.repeat: found 1000000000, allowed: at most 100000"),
        ("repeat: 1000000000", "suite.yaml:4: repeat: found 1000000000, allowed: at most 100000"),
    ],
)
def test_keys_of_a_suite_are_not_called_flags_and_are_bounded(keys, said, regress):
    ended = regress(f"scenarios: [op.yaml]\n{keys}")
    ended.refused(2, said)
    assert "--on" not in ended.said


def test_the_device_of_a_scenario_is_not_called_a_flag(probe, op):
    op.write_text(op.read_text() + "device: sim:h20\n")
    probe("plan", "op.yaml").refused(2, "op: device 'sim:h20': no device 'h20'; nearest: h200")


@pytest.mark.parametrize(
    ("pattern", "said"), [("/proc/**/*.yaml", "'/proc/**/*.yaml'"), ("", "no scenario matches ''")]
)
def test_a_suite_pattern_does_not_walk_the_machine(pattern, said, regress):
    regress(f"scenarios: ['{pattern}']").refused(2, said)


DEVICES = {
    "no devices": "limits: {}\n",
    "list": "devices: [1, 2]\n",
    "figure of text": "devices: {my: {like: h200, warpSize: many}}\n",
    "figure huge": "devices: {my: {like: h200, multiProcessorCount: 99999999999}}\n",
    "id with a command": "devices: {'my;true': {like: h200}}\n",
    "deep": "{a: " * 3000,
}


@pytest.mark.parametrize("name", DEVICES)
def test_device_file(name, probe, tmp_path):
    (tmp_path / "my.yaml").write_text(DEVICES[name])
    probe("device", "list", "--devices", "my.yaml").refused(2, "my.yaml")


def of_a_newer_version(path):
    with open_history(path) as history:
        history.connection.execute(f"PRAGMA user_version = {VERSION + 1}")


def of_another_program(path):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")


HISTORIES = {
    "text": (lambda path: path.write_text("no database, but long enough to be one" * 100), "file is not a database"),
    "cut": (lambda path: path.write_bytes(b"SQLite format 3\x00" + bytes(10)), "h.db"),
    "of a newer version": (of_a_newer_version, f"is of version {VERSION + 1}, made by a newer fattn-probe"),
    "of another program": (of_another_program, "another program's database (tables: bookmarks)"),
    "folder": (lambda path: path.mkdir(), "this is a folder"),
}


@pytest.mark.parametrize("words", ["list", "show x", "accept --why x --last", "export", "judge", "prune 2026-01-01"])
@pytest.mark.parametrize("name", HISTORIES)
def test_history(name, words, probe, tmp_path):
    path = tmp_path / "h.db"
    make, said = HISTORIES[name]
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    probe("history", *words.split(), "--history", path).refused(2, "h.db", said)
    assert (path.read_bytes() if path.is_file() else b"") == before, "nothing was written"
