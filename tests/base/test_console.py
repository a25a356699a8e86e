"""One place writes to a terminal: text of any origin, on any terminal."""

import ast
import codecs
import io
import json
import os
import sys
import unicodedata

import pytest
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from fattn_probe.base import console
from fattn_probe.base.console import NOTES, OUT, Stream, Terminal, readable, readable_text, text_of
from fattn_probe.base.errors import MachineError
from fattn_probe.base.tables import Flow, Table, labelled, listed
from tests.as_user import fattn_probe
from tests.made import ROOT

HOSTILE = "a\x1b[2Jb\x1b]0;title\x07c\u202egnp.exe\x9bd\ud800\r\u2028"
OBEYED = ("Cc", "Cf", "Cs", "Zl", "Zp")


def unprintable(text):
    """The characters of a text that a terminal would obey."""
    return [sign for sign in text if unicodedata.category(sign) in OBEYED and sign not in "\n\t"]


def test_every_character_that_a_terminal_obeys_is_escaped_and_styles_stay_where_they_are():
    for code in range(sys.maxunicode + 1):
        sign = chr(code)
        if unprintable(sign):
            assert not unprintable(readable(sign)), hex(code)
            assert readable(sign).startswith("\\"), hex(code)
    assert readable("a\x1b[31mb\u202ec\ud800\x9b") == r"a\x1b[31mb\u202ec\ud800\x9b"
    plain = "a\tb\nKVµ ∞ 漢字 🙂 {64, 3}"
    assert readable(plain) == plain
    assert readable(readable(HOSTILE)) == readable(HOSTILE)
    found = readable_text(Text.assemble(("one\x1b", "red"), ("\u202etwo", "green")))
    assert found.plain == r"one\x1b\u202etwo"
    styled = {found.plain[span.start : span.end]: span.style for span in found.spans}
    assert (styled["one"], styled["two"]) == ("red", "green")


def grid():
    table = RichTable("a", title=HOSTILE)
    table.add_row(HOSTILE)
    return table


@pytest.mark.parametrize(
    "shown",
    [
        HOSTILE,
        Text(HOSTILE),
        Group(HOSTILE, Text(HOSTILE, "red")),
        Table(("case", "about"), ((HOSTILE, HOSTILE), (HOSTILE, Text(HOSTILE)))),
        Flow([("name", Text(HOSTILE))]),
        labelled({"about": HOSTILE}),
        listed([HOSTILE]),
        grid(),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("width", [20, 80, 120])
def test_no_renderable_lets_a_control_character_through(shown, width):
    text = text_of(shown, width)
    assert not unprintable(text)
    assert "gnp" in text.replace("\n", "")


def test_nothing_is_markup_or_the_name_of_an_emoji():
    assert text_of("[bold]x[/bold] [/nothing] sim:id: :smile:", 80) == "[bold]x[/bold] [/nothing] sim:id: :smile:\n"
    for terminal in (OUT, NOTES):
        assert terminal.render_str("sim:id: [red]").plain == "sim:id: [red]"


FORBIDDEN = {"print", "Console", "echo", "secho", "style_print"}


def writes(path):
    """The places in a module that write to a terminal, or that could."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            named = node.func.id if isinstance(node.func, ast.Name) else ""
            of = ast.unparse(node.func) if isinstance(node.func, ast.Attribute) else ""
            if named in FORBIDDEN or of in ("typer.echo", "click.echo", "typer.secho", "traceback.print_exception"):
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {named or of}()"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.stdout", "sys.stderr", "sys.__stdout__"):
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


def test_only_the_console_writes_to_a_terminal():
    files = [path for path in ROOT.glob("fattn_probe/**/*.py") if path.name != "console.py"]
    assert [place for path in files for place in writes(path)] == []
    assert list(writes(ROOT / "fattn_probe/base/console.py")), "the test sees what it forbids"


class Refusing(io.StringIO):
    """A stream that cannot be written."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def write(self, text):
        raise self.error


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("I/O operation on closed file")])
def test_what_stdout_refuses_is_an_error_of_the_machine(monkeypatch, error):
    monkeypatch.setattr(sys, "stdout", Refusing(error))
    with pytest.raises(MachineError, match=r"stdout: cannot be written: (No space|I/O operation)"):
        Stream("stdout").write("x")


def test_a_closed_pipe_has_no_number_by_which_typer_would_choose_the_exit_code(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Refusing(BrokenPipeError(32, "Broken pipe")))
    with pytest.raises(BrokenPipeError) as raised:
        Stream("stdout").write("x")
    assert raised.value.errno is None


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), BrokenPipeError(32, "Broken pipe")])
def test_what_stderr_refuses_is_dropped(monkeypatch, error):
    monkeypatch.setattr(sys, "stderr", Refusing(error))
    Stream("stderr").write("x")


@pytest.fixture
def encodings():
    """What main() does first."""
    codecs.register_error(console.ENCODING_ERRORS, console.substitute)


@pytest.mark.usefixtures("encodings")
@pytest.mark.parametrize(
    ("encoding", "expected"), [("ascii", r"-|_%* >= \u6f22"), ("latin-1", r"-|_%* >= \u6f22"), ("utf-8", "─│▁▇▒ ≥ 漢")]
)
def test_an_encoding_that_lacks_characters(encoding, expected):
    assert "─│▁▇▒ ≥ 漢".encode(encoding, console.ENCODING_ERRORS) == expected.encode(encoding)


@pytest.mark.usefixtures("encodings")
def test_a_name_of_a_file_that_is_no_text_can_be_shown():
    name = os.fsdecode(b"a\xff.yaml")
    assert readable(name) == r"a\udcff.yaml"
    assert name.encode("utf-8", console.ENCODING_ERRORS) == rb"a\udcff.yaml"


def test_a_document_is_unchanged_in_a_pipe(monkeypatch):
    stdout = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stdout)
    console.DOCUMENTS.write("a\x1b")
    assert stdout.getvalue() == "a\x1b"
    monkeypatch.setattr(stdout, "isatty", lambda: True, raising=False)
    console.DOCUMENTS.write("b\x1b")
    assert stdout.getvalue() == "a\x1bb\\x1b"


def test_the_help_has_no_emoji_and_is_a_document_with_json():
    text = fattn_probe("capture", "--help").stdout
    assert "sim:ID:" in " ".join(text.split())
    assert text.isascii()
    assert "device list [OPTIONS]" in json.loads(fattn_probe("device", "list", "--json", "--help").stdout)["help"]


def test_the_width_of_a_terminal_without_notes():
    file = io.StringIO()
    Terminal(file, 40).print("x" * 100)
    assert max(map(len, file.getvalue().splitlines())) == 40
