"""The glossary: a word is found by its name, or by a name of llama.cpp that its entry explains."""

import json
import re

import pytest
from typer.testing import CliRunner

from fattn_probe.base.console import text_of
from fattn_probe.base.errors import InputError
from fattn_probe.cases.shipped import page
from fattn_probe.cli import app
from fattn_probe.cli.glossary import entries, entry_of
from fattn_probe.daily.inspect import command
from fattn_probe.daily.inspect.examine import Examined
from fattn_probe.daily.inspect.inspector import Inspection
from fattn_probe.machine.run.outcome import Lost
from tests.daily.inspect import made_facts
from tests.made import ROOT


def printed(*words):
    return CliRunner().invoke(app, ["glossary", *words]).stdout


@pytest.mark.parametrize(
    ("term", "word"),
    [
        *[("kbc", "share"), ("stream k", "stream-K"), ("Bank Conflicts", "bank conflict"), ("S", "score")],
        *[("row", "row"), ("tile", "tile"), ("head size", "row"), ("GQA", "group"), ("flavours", "build")],
        *[("KV row", "row"), ("lost", "verdict"), ("baselines", "history"), ("unwritten", "finding")],
    ],
)
def test_an_entry_is_found_by_its_word_or_by_a_name_in_its_meaning(term, word):
    assert entry_of(term).word == word


@pytest.mark.parametrize(("term", "said"), [("rescaling", "did you mean rescale"), ("", "lists all terms")])
def test_an_unknown_term_is_answered_with_the_nearest(term, said):
    with pytest.raises(InputError, match=f"^{term}: not in the glossary; .*{said}"):
        entry_of(term)


def test_an_entry_is_printed_with_its_command_and_the_step_of_the_tour():
    assert printed("KV", "step").splitlines() == [
        "KV step: `nbatch_fa` KV rows, which a block processes together; a tile has `iter_k` KV steps.",
        "shown by: fattn-probe inspect gqa --on sim:h200",
        f"explained in {page('guide/tour.md')}, step 4",
    ]
    assert json.loads(printed("seam", "--json"))["step"] == "4"
    words = [entry["word"] for entry in json.loads(printed("--json"))]
    assert words == [entry.word for entry in entries() if entry.word in printed()]


def test_the_steps_that_entries_and_inspect_name_are_in_the_tour():
    steps = re.findall(r"^## (\d+)\. ", (ROOT / "docs/guide/tour.md").read_text(), re.MULTILINE)
    assert {entry.step for entry in entries()} - {""} <= {*steps}
    found, lost = (Examined(Inspection("gqa", "sim:h200", result, 0.0)) for result in (made_facts.gqa(), Lost("gone")))
    last = text_of(command.render_examined([found], False), 120).splitlines()[-1]
    assert last.startswith(f"{page('guide/tour.md')}, step 4, explains this; `fattn-probe glossary TERM`")
    assert "tour.md" not in text_of(command.render_examined([lost], False), 120)
