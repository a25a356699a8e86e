"""The walk of a case in docs/architecture.md is the one that `compare` takes."""

import ast
import re
import sys

import pytest

from fattn_probe.cli import main
from fattn_probe.verdict.judge.judgement import Judgement
from tests.made import ROOT

PAGE = (ROOT / "docs/architecture.md").read_text()
SECTION = PAGE.partition("## A case, from YAML to verdict")[2].partition("\n## ")[0]
HOPS = re.findall(r"(?m)^(\d+)\. `([\w/]+\.py): ([\w.]+)`", SECTION)
TYPES = re.findall(r"(?m)^\| `(\w+)` \| `([\w/]+\.py)` \| (\d+) \|", SECTION)


def calls_of_main():
    """What the command of `sys.argv` calls in the package, `module: function`, in order."""
    found: list[str] = []

    def note(frame, event, arg):
        code = frame.f_code
        if event == "call" and "/fattn_probe/" in code.co_filename:
            found.append(f"{code.co_filename.rpartition('/fattn_probe/')[2]}: {code.co_qualname}")

    sys.setprofile(note)
    try:
        with pytest.raises(SystemExit):
            main()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.build
@pytest.mark.network
def test_compare_takes_the_hops_in_their_order(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fattn-probe", "compare", "gqa", "--on", "sim:h200"])
    made, init = list[str](), Judgement.__init__

    def counted(self, **fields):
        made.append(fields["case"])
        init(self, **fields)

    monkeypatch.setattr(Judgement, "__init__", counted)
    calls = calls_of_main()
    assert "1 pass" in capsys.readouterr().out
    hops = [f"{module}: {function}" for _, module, function in HOPS]
    assert not set(hops) - set(calls)
    assert sorted(hops, key=calls.index) == hops
    assert made == ["gqa"], "a judgement is made once, complete"
    assert calls.count("llama/launch/kernel.py: attention_of") <= 2  # a dry run of a large case, and the run


def test_the_walk_is_short_and_its_types_are_where_it_says():
    assert [int(number) for number, *_ in HOPS] == list(range(1, len(HOPS) + 1)) and len(HOPS) <= 15
    assert 10 <= len(TYPES) <= 12 and all(1 <= int(hop) <= len(HOPS) for *_, hop in TYPES)
    for name, module, _ in TYPES:
        body = ast.parse((ROOT / "fattn_probe" / module).read_text()).body
        assert name in {node.name for node in body if isinstance(node, ast.ClassDef)}, (name, module)
