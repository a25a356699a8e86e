import json
import re

import pytest
from typer.testing import CliRunner

from fattn_probe.base.errors import InputError
from fattn_probe.cases.scenario import command, expand, load
from fattn_probe.cases.scenario.cases import read_cases
from fattn_probe.cli import app
from tests.made import SCENARIOS, shown

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
    with pytest.raises(InputError, match="cannot write"):
        command.new(tmp_path / "no" / "folder")


def test_the_starter_s_commented_keys_are_good_too(tmp_path):
    path = command.new(tmp_path / "all")
    given = re.sub(
        r"^# (?=[a-z][\w.]*: | +[KV]: | +- |[a-z]+:$| +[a-z][\w.]*:)", "", path.read_text(), flags=re.MULTILINE
    )
    path.write_text(given)
    assert len(expand(load(path))) == 5
