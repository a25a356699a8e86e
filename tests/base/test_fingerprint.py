"""One fingerprint of what was run; digests, and names made from either, keep their values, also in shipped files."""

import hashlib
import json
from dataclasses import fields, replace
from pathlib import PurePosixPath

import pytest

from fattn_probe.base.digest import hexdigest, short
from fattn_probe.base.fingerprint import FINGERPRINT, Fingerprint, fingerprint_in
from fattn_probe.cases.device import Target
from fattn_probe.cases.op import Op, Params, Sizes
from fattn_probe.cases.scenario.cases import resolve
from fattn_probe.cases.scenario.schema import Scenario
from fattn_probe.daily.regress.records import Shard, case_fingerprint
from fattn_probe.daily.regress.selection import CaseSelection
from fattn_probe.daily.regress.suite import Entry
from fattn_probe.lab.detect.mutants import Mutant
from fattn_probe.lab.detect.verdicts import judgement_of
from fattn_probe.llama.source.tree import digest_files
from fattn_probe.machine.run import session as fingerprints
from fattn_probe.machine.run.session import on_target
from fattn_probe.verdict.judge.checks import Checks
from tests.made import H200

MADE = Fingerprint(
    tree="t",
    patches=(("a", "b"),),
    engine="sim",
    flavour="check",
    arch="90",
    sanitize=("undefined",),
    quants=("q4_0-f16",),
    compilers=("g++ 12",),
)
ASKED = Fingerprint(
    tree="t", patches=(("a", "b"),), flavour="release", quants=("q4_0-f16", "f16-f16"), version="0.1.0", stamp="stamp"
)
KNOWN = replace(
    on_target(MADE, H200), driver="d", version="v", stamp="s", own="o", checks="c", cases="x", needed=MADE.patches
)


def test_a_build_has_a_folder_for_what_is_compiled_and_by_which_fattn_probe():
    assert MADE.build == replace(MADE, patches=(), needed=MADE.patches).build == "8035fe73fb44"
    assert replace(MADE, stamp="t").build != MADE.build


def test_the_kernels_and_launches_of_ops_are_remembered_where_they_always_were(monkeypatch):
    asked = on_target(ASKED, H200)
    assert asked.kernels == "efcd1e86bcb14c1c"
    assert asked.launches == "209e0a26e347f0c9"
    assert replace(asked, tree="pypi:x==1", patches=()).kernels == "b3f9c1e1a4989b57"
    monkeypatch.setattr(fingerprints, "gpu_name", lambda index: "NVIDIA H200")
    assert on_target(ASKED, Target("cuda")).kernels == "d66918d35027b780"


@pytest.mark.parametrize(
    ("told", "checks", "expected"),
    [
        ({"flavour": "check", "sanitize": ["undefined"], "quants": ["q4_0-f16"]}, Checks(), "0e39f04eef11055b"),
        ({}, Checks(repeat=2), "bf7219f0e018ddae"),
    ],
)
def test_kept_verdicts_of_mutants_hold(told, checks, expected):
    entry = Entry.model_validate({"scenarios": ["x"], "on": ["sim:h200"]} | told)
    assert short(json.dumps(judgement_of(entry, H200, checks))) == expected


def test_a_fingerprint_in_json_is_whole_or_unknown():
    assert fingerprint_in(FINGERPRINT.text(KNOWN)) == KNOWN
    assert all(getattr(KNOWN, field.name) for field in fields(KNOWN))
    assert fingerprint_in("") is None
    assert fingerprint_in('{"tree": "t"}') is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tree": "u"}, ("the source's files",)),
        ({"patches": (("a", "other text"),)}, ("the patches' text",)),
        ({"compilers": ("g++ 13",), "own": "p"}, ("the compilers", "fattn-probe itself")),
        ({"checks": "d"}, ("how cases are judged",)),
        ({"cases": "y"}, ()),
    ],
)
def test_what_differs_is_named(changed, words):
    assert KNOWN.differences(replace(KNOWN, **changed)) == words


OP = {"version": 1, "about": "x", "hsk": 64, "n_head": 1, "n_q": 1, "n_kv": 64}


def case(**changes):
    return resolve(Scenario.model_validate(OP | changes), f"case-{changes.get('seed', 0)}", "f")


@pytest.mark.parametrize("changes", [{"tolerance": {"nmse": 1e-3}}, {"n_kv": 128}, {"seed": 7}])
def test_what_decides_the_verdict_on_a_case_is_in_its_fingerprint(changes):
    assert case_fingerprint(case(**changes)) != case_fingerprint(case())
    assert case_fingerprint(case(about="y")) == case_fingerprint(case())


def test_every_shard_has_the_digest_of_all_cases():
    """So shards of a suite that changed between them are not one run."""
    cases = tuple(case(seed=seed) for seed in range(8))
    whole = CaseSelection(cases)
    parts = [whole.of(Shard(number, 3)) for number in (1, 2, 3)]
    assert sum(len(part.cases) for part in parts) == 8
    assert {part.digest for part in parts} == {whole.digest}
    assert CaseSelection(cases[:-1]).of(Shard(1, 3)).digest != whole.digest


def test_texts_bytes_and_chunks_have_the_digest_of_their_bytes_and_ops_keep_theirs():
    expected = hashlib.sha256(b"a\xffb").hexdigest()
    assert hexdigest(b"a\xffb") == hexdigest("a\udcffb") == hexdigest(["a", b"\xff", memoryview(b"b")]) == expected
    assert (short(b"a\xffb"), short("a\udcffb", 8)) == (expected[:16], expected[:8])
    # A table of kernels, of support or of verdicts whose keys changed would be empty, and nothing would say so.
    sizes, params = Sizes(1, 8, 2, 3, 256, 128, 64), Params(0.125, 8.0, 30.0, 10, 128)
    assert Op.contiguous(sizes, params, ("q8_0", "f16"), mask=True, sinks=True).digest == "bf305c0ecab7b0f7"
    assert case(n_head=2, max_bias=8.0, seed=3).digest == "386acb1ca6b50dd6"


def test_digests_of_sources_mutants_and_shards_keep_their_values(tmp_path):
    mutant = Mutant(1, "fattn.cu", 7, "jump", "continue", "break")
    assert mutant.digest == "496523d06f176197e692e2d060d65ea0e6e1088fe8d92865958334c805539277"
    assert [Shard(number, 3).has("abc") for number in (1, 2, 3)] == [True, False, False]
    (tmp_path / "a").write_bytes(b"x\0y")
    assert digest_files(tmp_path, [PurePosixPath("a")]) == hashlib.sha256(b"a\x003\0x\0y").hexdigest()
