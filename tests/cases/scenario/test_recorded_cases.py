"""Cases whose inputs are in a file: read, named, judged as those of scenarios are."""

import json

import numpy as np
import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.op.case_file import read_case, write_case
from fattn_probe.cases.scenario.cases import cases_of, recorded_case
from fattn_probe.cases.scenario.inputs import make_inputs, root_bytes
from fattn_probe.daily.regress.suite import Entry
from fattn_probe.daily.regress.suite import cases_of as cases_of_entry
from fattn_probe.machine.run.capture import make_case_file
from fattn_probe.verdict.judge.checks import Checks
from tests.as_user import fattn_probe
from tests.made import CAUSAL, case_of, shape

DRAWN = shape(64, 2, 2, 5, 96, CAUSAL, "layout: {K: {kind: view, permute: [0, 2, 1, 3], rows: 128}}")


@pytest.fixture
def drawn():
    return case_of(DRAWN)


@pytest.fixture
def file(drawn, tmp_path):
    write_case(drawn, make_inputs(drawn), tmp_path / "layer-03.gguf")
    return tmp_path / "layer-03.gguf"


def test_a_recorded_case_is_the_case_that_was_written_and_is_judged_whole(drawn, file):
    case = recorded_case(file)
    assert (case.name, case.scenario, case.digest, case.op) == ("layer-03", "layer-03", drawn.digest, drawn.op)
    assert case.recorded and case.mask_kind == "recorded" and case.seed == 0
    for name, memory in make_inputs(drawn).items():
        np.testing.assert_array_equal(make_inputs(case)[name], memory)
        np.testing.assert_array_equal(root_bytes(case, name), memory)
    with pytest.raises(InputError, match=r"layer-03\.gguf: a recorded case contains its inputs"):
        _ = case.recipe
    assert not Checks().samples(case) and not Checks(sample=3).may_take_part(case)


def test_its_case_file_has_the_same_bytes(file, tmp_path):
    made = make_case_file(recorded_case(file), tmp_path / "copy.gguf")
    for name, memory in make_inputs(recorded_case(file)).items():
        np.testing.assert_array_equal(made[name], memory)


def test_its_case_file_reads_the_recorded_one_once(file, tmp_path, monkeypatch):
    """All tensors are read at once, shared blocks too, which are not mapped but copied into memory."""
    read = []

    def counted(path):
        read.append(path)
        return read_case(path)

    case = recorded_case(file)
    monkeypatch.setattr("fattn_probe.cases.scenario.inputs.read_case", counted)
    make_case_file(case, tmp_path / "copy.gguf")
    assert read == [file]


def test_a_folder_and_a_suite_may_have_recorded_cases_and_equal_names_are_told_apart(file):
    (file.parent / "drawn.yaml").write_text(DRAWN)
    assert [case.name for case in cases_of([file.parent])] == ["drawn", "layer-03"]
    assert [case.name for case in cases_of_entry(Entry(scenarios=["*.gguf"]), file.parent)] == ["layer-03"]
    other = file.parent / "other" / file.name
    other.parent.mkdir()
    other.write_bytes(file.read_bytes())
    (file.parent / "drawn.yaml").write_text(DRAWN)
    names = [case.name for case in cases_of([file.parent, other])]
    assert names == ["drawn", f"{file.parent.name}-layer-03", "other-layer-03"]
    assert [case.name for case in cases_of([file, file])] == ["layer-03", "layer-03"]
    of_suite = cases_of_entry(Entry(scenarios=["*.gguf", "other/*.gguf", "*.gguf"]), file.parent)
    assert [case.name for case in of_suite] == [f"{file.parent.name}-layer-03", "other-layer-03"]


def test_all_mistakes_of_a_folder_are_said(file):
    file.write_bytes(file.read_bytes()[:-100])
    (file.parent / "bad.yaml").write_text("version: 1\n")
    with pytest.raises(InputError, match=r"(?s)bad\.yaml.*layer-03\.gguf"):
        cases_of([file.parent])


def cli(*words):
    return fattn_probe(*words).stdout


@pytest.mark.build
def test_a_capture_is_replayed_with_the_same_bits_and_other_commands_take_it_too(tmp_path):
    cli("run", "gqa", "--on", "sim:h200", "--captures", tmp_path)
    (file,) = tmp_path.iterdir()
    (again,) = json.loads(cli("compare", file, "--on", "sim:h200", "--json"))["rows"]
    (first,) = json.loads(cli("compare", "gqa", "--on", "sim:h200", "--json"))["rows"]
    assert again["status"] == "pass" and again["case"] == "gqa@sim-h200"
    assert (again["output"], again["digest"]) == (first["output"], first["digest"])
    assert again["design"]["equal_bits"] == 1.0
    assert "flash_attn_ext_f16<64,64,8,8" in cli("plan", file, "--on", "sim:h200")
    assert "All outputs and log-sum-exps agree" in cli("study", file)
    assert "recorded" in cli("scenario", "show", file)
    assert "tiled" in cli("compare", file, "--kernel", "llama,tiled", "--on", "sim:h200")
