"""The scenarios that come along, and the commands that list and show them."""

import json
import re

import pytest
from typer.testing import CliRunner

from fattn_probe.base.errors import InputError, MachineError
from fattn_probe.cases.scenario import command, expand, load, loads
from fattn_probe.cases.scenario.cases import read_cases
from fattn_probe.cases.scenario.data import Uniform
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cases.scenario.mask import max_finite
from fattn_probe.cli import app
from tests.made import ROOT, SCENARIOS, shipped, shown

FILES = sorted((ROOT / "scenarios").glob("*.yaml"))
ASKED_FOR = {
    *("gqa", "decode", "prefill", "mha", "mqa", "mla", "softcap", "alibi", "sinks", "sliding-window", "q8-cache"),
    *("unpadded-kv", "sequences", "biased-v", "streamk-fractional", "sparse"),
}
SLOW = {"streamk-fractional", "biased-v"}


def test_all_are_there_and_no_two_cases_are_the_same():
    assert not ASKED_FOR - {path.stem for path in FILES}
    cases = [case for path in FILES for case in expand(load(path))]
    assert len({case.digest for case in cases}) == len({case.name for case in cases}) == len(cases)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_is_good_and_small(path):
    for case in expand(load(path)):
        assert all(view.end <= case.op.roots[view.root].nbytes for view in case.op.tensors.values())
        assert case.op.sizes.flop <= (26e9 if path.stem in SLOW else 1e9)


def test_digests_are_those_of_the_recorded_captures():
    """A digest names a case in captures and histories: it must outlive every refactoring."""
    recorded = json.loads((ROOT / "tests" / "data" / "h200.json").read_text())["cases"]
    digests = {case.name: case.digest for path in FILES for case in expand(load(path))}
    same = {name: recorded[name]["digest"] for name in digests if name in recorded}
    assert len(same) > 20
    assert {name: digests[name] for name in same} == same


def test_gqa_is_the_session_to_reproduce():
    case = shipped("gqa")
    tensors = case.op.tensors
    assert tensors["Q"].ne == (64, 7, 14, 1)
    assert tensors["K"].ne == tensors["V"].ne == (64, 256, 2, 1)
    assert tensors["mask"].ne == (256, 7, 1, 1)
    assert (case.op.params.scale, case.op.params.prec) == (0.125, 10)
    assert (case.op.sizes.hsv, case.op.sizes.n_head, case.op.sizes.n_q, case.op.sizes.n_seq) == (64, 14, 7, 1)
    sizes = {"Q": 25088, "K": 65536, "V": 65536, "mask": 3584}
    assert {name: data.size for name, data in make_inputs(case).items()} == sizes


def test_sparse_meets_the_kernels_conditions():
    for case in expand(load(ROOT / "scenarios" / "sparse.yaml")):
        sizes, most = case.op.sizes, case.op.params.n_kv_max
        assert (sizes.hsk, sizes.hsv) in ((256, 256), (512, 512), (576, 512))
        assert sizes.n_kv >= max(4096, 2 * most * sizes.n_q)
        assert sizes.group > 4
        assert max_finite(case.recipe.mask, case.mask_shape) <= most


def test_the_examples_in_the_document_are_good():
    blocks = (ROOT / "docs/reference/scenario.md").read_text(encoding="utf-8").split("```yaml\n")
    starter, matrix = (blocks[number].split("```")[0] for number in (-1, 1))
    cases = expand(loads(starter + matrix))
    assert len(cases) == 5
    assert isinstance(cases[-1].recipe.data.V, Uniform) and cases[-1].recipe.data.V.mean == 1


BAD = "version: 1\nabout: bad\nhsk: 64\nn_head: 4\nn_head_kv: 3\nn_q: 1\nn_kv: 1\n"


def test_list_names_every_file_the_broken_ones_with_their_problem(tmp_path):
    (tmp_path / "good.yaml").write_text((SCENARIOS / "q8-cache.yaml").read_text())
    (tmp_path / "bad.yaml").write_text(BAD)
    bad, good = command.list_scenarios(tmp_path)
    assert (good["name"], good["cases"], good["problem"]) == ("good", 2, "")
    assert (bad["name"], bad["cases"]) == ("bad", 0)
    assert "bad.yaml:5: n_head_kv" in bad["problem"]
    assert "bad.yaml:5: n_head_kv" in shown(command.render_list([bad, good]))
    with pytest.raises(InputError, match="no folder of scenarios"):
        command.list_scenarios(tmp_path / "none")


def test_show_prints_ne_and_nb_and_its_data_are_plain():
    cases = read_cases(SCENARIOS / "gqa.yaml")
    text = shown(command.render_show(cases))
    assert "{64, 7, 14, 1}" in text
    assert "scale=0.125" in text
    assert cases[0].digest in text
    (case,) = read_cases(SCENARIOS / "mla.yaml")
    plain = json.loads(json.dumps(command.case_json(case)))
    assert plain["tensors"]["V"]["root"] == "K"
    assert plain["mask"] == {"kind": "causal", "past": None}


def test_check_reports_all_files(tmp_path):
    (tmp_path / "bad.yaml").write_text(BAD)
    files = [tmp_path, SCENARIOS / "gqa.yaml", tmp_path / "none.yaml"]
    checks = command.check(files)
    assert [len(check["problems"]) for check in checks] == [1, 0, 1]
    text = shown(command.render_check(checks))
    assert "gqa.yaml: good, 1 case\n" in text
    assert "bad.yaml:" in text
    assert "none.yaml" in text
    done = CliRunner().invoke(app, ["scenario", "check", *map(str, files[:2])])
    assert isinstance(done.exception, InputError) and str(done.exception) == "1 mistake in 1 of 2 files"
    assert CliRunner().invoke(app, ["scenario", "check", str(files[1])]).exit_code == 0


def test_new_writes_a_good_file_and_never_over_another(tmp_path):
    path = command.new(tmp_path / "mine")
    assert path.name == "mine.yaml"
    assert [case.name for case in expand(load(path))] == ["mine"]
    with pytest.raises(InputError, match="exists, allowed: a new file"):
        command.new(path)
    with pytest.raises(MachineError, match="cannot be written"):
        command.new(path / "folder")


def test_the_starter_s_commented_keys_are_good_too(tmp_path):
    path = command.new(tmp_path / "all")
    given = re.sub(
        r"^# (?=[a-z][\w.]*: | +[KV]: | +- |[a-z]+:$| +[a-z][\w.]*:)", "", path.read_text(), flags=re.MULTILINE
    )
    path.write_text(given)
    assert len(expand(load(path))) == 5
