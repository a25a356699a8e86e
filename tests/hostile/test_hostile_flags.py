"""Flags that are wrong, on every command that has them."""

from pathlib import Path

import pytest

LINES = Path(__file__).with_name("flags.txt").read_text(encoding="utf-8").splitlines()
WORDS = dict(line.split(" => ") for line in LINES if line and not line.startswith("#"))


@pytest.mark.parametrize("words", WORDS)
def test_words(words, probe, here):
    probe(*words.replace("''", "").split(" ")).refused(2, WORDS[words])


@pytest.mark.parametrize("words", ["run op.yaml --timeout nan", "run op.yaml --on tpu", "run nowhere.yaml", "run", "x"])
def test_a_program_reads_the_error_on_stdout(words, probe, here):
    ended = probe(*words.split(" "), "--json")
    ended.refused(2)
    assert ended.error()["exit_code"] == 2
    assert ended.error()["kind"] == "InputError"
    assert " ".join(ended.error()["message"].split()) == ended.said
