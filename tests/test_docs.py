"""The commands in README, docs and workflows: their flags, scenarios, suites and patches exist."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from fattn_probe import shipped
from fattn_probe.cli import app
from fattn_probe.errors import InputError
from fattn_probe.source import patches

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
QUOTED = re.compile(r"```\w*\n(.*?)```|(?<!`)`(fattn-probe [^`]+)`", re.DOTALL)
COMMAND = re.compile(r"fattn-probe [a-z][^;>|&\n]*")
PLACEHOLDER = re.compile(r"\b[A-Z_]{2,}\b|\.\.\.|[\[\]\\]")
OF_UPSTREAM = {"tests/test-backend-ops.cpp"}
VARIABLE = re.compile(r"\$\{\{[^}]*\}\}|\$\w+")


def commands(page):
    """The complete commands of a page: none with a placeholder such as SCENARIO."""
    text = page.read_text()
    quoted = text if page in WORKFLOWS else "\n".join(block or inline for block, inline in QUOTED.findall(text))
    found = [re.split(r" {2,}\(| +#", line)[0].strip() for line in COMMAND.findall(quoted)]
    found = [line.strip('"') if line.count('"') % 2 else line for line in found]
    return sorted({VARIABLE.sub("1", line) for line in found if not PLACEHOLDER.search(VARIABLE.sub("1", line))})


LINES = [pytest.param(line, id=f"{page.stem}: {line}") for page in PAGES + WORKFLOWS for line in commands(page)]


def test_the_documents_have_commands():
    assert len(LINES) > 30


@pytest.mark.parametrize("line", LINES)
def test_a_command_can_be_parsed(line, monkeypatch):
    monkeypatch.chdir(ROOT)
    command, words = typer.main.get_command(app), shlex.split(line)[1:]
    while hasattr(command, "commands") and words:
        command = command.commands[words.pop(0)]
        command = getattr(command, "loaded", command)
    if words:
        context = command.make_context(line, words)
        for name in context.params.get("patch") or []:
            assert patches.named(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_file_that_is_named_exists(page):
    text = page.read_text()
    named = set(re.findall(r"\b((?:scenarios|suites|patches)/[\w./-]+\.(?:yaml|patch))\b", text))
    named |= set(re.findall(r"`((?:tests|scripts|fattn_probe|suites|docs|patches)/[\w./-]+)`", text)) - OF_UPSTREAM
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_a_path_wins_over_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shipped.find("scenario", "gqa") == ROOT / "scenarios/gqa.yaml"
    (tmp_path / "gqa").mkdir()
    assert shipped.find("scenario", "gqa") == Path("gqa")


@pytest.mark.parametrize(
    ("kind", "word", "said"),
    [
        ("scenario", "k-stride", "did you mean known-faults/k-stride"),
        ("scenario", "faults/k-strid", "did you mean known-faults/k-stride"),
        ("scenario", "nowhere/gqa.yaml", "did you mean gqa"),
        ("scenario", "x", "there are: alibi,"),
        ("scenario", "../scenarios/gqa", "did you mean gqa"),
        ("scenario", "x" * 5000, "File name too long"),
        ("suite", "quik", "did you mean quick"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(kind, word, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=said):
        shipped.find(kind, word)


def test_a_name_may_be_a_folder():
    assert shipped.find("scenario", "known-faults") == ROOT / "scenarios/known-faults"
