"""The corpus of historic faults: every file is complete, and applies to the release it is made for."""

import re
from pathlib import Path

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import load_devices
from fattn_probe.cases.scenario import expand, load
from fattn_probe.llama.source import DEFAULT_SOURCE, patches, resolve
from fattn_probe.llama.source.faults import FAMILIES, corpus, read_fault
from fattn_probe.verdict.diagnose.faults import KINDS, NONE

CORPUS = corpus()
HEAD = """\
# The kernel forgets the last row. Modelled on ggml-org/llama.cpp#1.
# family: tail and bounds
# users: wrong output
# noticed: a user
# shows: gqa on h200
# catch: verdict
# cause: the last row
# diagnosis: kv-left-out, kv-beyond
"""
DIFF = "--- a/a/x.cu\n+++ b/a/x.cu\n@@ -1 +1 @@\n-x\n+y\n"


@pytest.mark.parametrize("fault", CORPUS, ids=lambda fault: fault.patch.name)
def test_fault_is_complete(fault):
    lines = fault.patch.text.partition("\n--- ")[0].splitlines()
    keys = [index for index, line in enumerate(lines) if re.match(r"# \w+: ", line)]
    assert keys == list(range(len(lines) - 7, len(lines))), "the seven fields follow the text, a line each"
    assert set(fault.diagnosis) <= {*KINDS, NONE} and (len(fault.diagnosis) == 1 or NONE not in fault.diagnosis)
    assert fault.wrong and not re.search(r"\bTODO\b", fault.patch.text)
    devices = load_devices()
    for shown in fault.shows:
        assert shown.device in devices
        assert expand(load(shown.scenario))
    assert {diff.path.suffix for diff in patches.parse(fault.patch)} <= {".cu", ".cuh"}


def test_there_are_enough_of_every_family_and_every_inline_scenario_has_its_fault():
    assert len(CORPUS) >= 60
    assert {fault.family for fault in CORPUS} == set(FAMILIES)
    shown = {case.scenario for fault in CORPUS for case in fault.shows}
    assert set(CORPUS[0].patch.path.parent.glob("*.yaml")) <= shown


@pytest.mark.network
def test_every_fault_applies_to_the_default_release(pypi):
    tree = resolve(DEFAULT_SOURCE)
    for fault in CORPUS:
        contents = patches.plan(patches.find(fault.name, tree), tree.root)
        assert all((tree.root / path.relative_to(tree.root)).read_text() != text for path, text in contents.items())


def fault_of(tmp_path, text, name="1-last-row"):
    path = tmp_path / f"{name}.patch"
    path.write_text(text + DIFF)
    return read_fault(path)


def test_head_is_read(tmp_path):
    fault = fault_of(tmp_path, HEAD)
    assert (fault.number, fault.family, fault.catch) == (1, "tail and bounds", "verdict")
    assert fault.patch.value("cause") == "the last row" and fault.diagnosis == ("kv-left-out", "kv-beyond")
    assert (fault.name, fault.wrong) == ("faults/1-last-row", "The kernel forgets the last row.")
    assert [(Path(case.scenario).name, case.device) for case in fault.shows] == [("gqa.yaml", "h200")]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("# cause: the last row\n", "", "the header has no `# cause:`"),
        ("family: tail and bounds", "family: luck", "family: 'luck' is not one of 32-bit products"),
        ("catch: verdict", "catch: luck", "catch: 'luck' is not one of verdict"),
        ("shows: gqa on h200", "shows: gqa", "'gqa' is not `SCENARIO on DEVICE`"),
        ("#1.", "#2.", "end its text with `Modelled on OWNER/NAME#NUMBER.`"),
    ],
)
def test_mistakes_in_a_head(tmp_path, old, new, said):
    with pytest.raises(InputError, match=re.escape(said)):
        fault_of(tmp_path, HEAD.replace(old, new))
    with pytest.raises(InputError, match=r"NUMBER-SLUG\.patch"):
        fault_of(tmp_path, HEAD, "last-row")
