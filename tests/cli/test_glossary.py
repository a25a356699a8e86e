"""The glossary: a word is found by its name, or by a name of llama.cpp that its entry explains."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fattn_probe.base.console import text_of
from fattn_probe.base.errors import InputError
from fattn_probe.cli import app
from fattn_probe.cli.glossary import TOUR, entries, entry_of
from fattn_probe.daily.inspect import command
from fattn_probe.daily.inspect.examine import Examined
from fattn_probe.daily.inspect.inspector import Inspection
from fattn_probe.machine.run.outcome import Lost
from tests.daily.inspect import made_facts

ROOT = Path(__file__).parents[2]


def run(*words):
    return CliRunner().invoke(app, ["glossary", *words])


@pytest.mark.parametrize(
    ("term", "word"),
    [
        ("kbc", "share"),
        ("iter_k", "KV step"),
        ("stream k", "stream-K"),
        ("Bank Conflicts", "bank conflict"),
        ("S", "score"),
        ("KQ_max_scale", "rescale"),
        ("launch", "launch"),
    ],
)
def test_an_entry_is_found_by_its_word_or_by_a_name_in_its_meaning(term, word):
    assert entry_of(term).word == word


@pytest.mark.parametrize(
    ("term", "said"),
    [("rescaling", "did you mean rescale"), ("xyzzy", "lists all words"), ("", "lists all words")],
)
def test_an_unknown_term_is_answered_with_the_nearest(term, said):
    with pytest.raises(InputError, match=f"^{term}: not in the glossary; .*{said}"):
        entry_of(term)


def test_an_entry_is_printed_with_its_command_and_the_step_of_the_tour():
    assert run("KV", "step").stdout.splitlines() == [
        "KV step: `nbatch_fa` KV rows, which a block processes together; a tile has `iter_k` KV steps.",
        "shown by: fattn-probe inspect gqa --on sim:h200",
        "explained in docs/guide/tour.md, step 4",
    ]
    assert json.loads(run("seam", "--json").stdout)["step"] == "4"


def test_without_a_term_all_words_are_listed():
    words = [entry["word"] for entry in json.loads(run("--json").stdout)]
    assert words == [entry.word for entry in entries()]
    assert all(word in run().stdout for word in words)


def test_every_step_that_an_entry_names_is_in_the_tour():
    steps = re.findall(r"^## (\d+)\. ", (ROOT / TOUR).read_text(), re.MULTILINE)
    assert {entry.step for entry in entries()} - {""} <= {*steps}
    assert command.TOUR == TOUR


def test_inspect_names_the_step_that_explains_its_map():
    found = Examined(Inspection("gqa", "sim:h200", made_facts.gqa(), 0.0))
    last = text_of(command.render_examined([found], False), 120).splitlines()[-1]
    assert last.startswith("docs/guide/tour.md, step 4, explains this; `fattn-probe glossary TERM`")
    lost = Examined(Inspection("gqa", "sim:h200", Lost("gone"), 0.0))
    assert TOUR not in text_of(command.render_examined([lost], False), 120)
