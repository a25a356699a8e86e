"""The parts of a reproduction: limits, the C++ file, the inputs, the README, the folder."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.op.case_file import read_case
from fattn_probe.cases.op.gguf_file import read_gguf
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.cli.reproduce import file_name
from fattn_probe.daily.reproduce.command import program_text, readme, setters_of, write_inputs
from fattn_probe.daily.reproduce.found import Found
from fattn_probe.daily.reproduce.ways import Chosen
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from fattn_probe.verdict.measure.expected import Expected
from fattn_probe.verdict.measure.limits import Limits, choose_limits
from fattn_probe.verdict.measure.verdict import judge
from fattn_probe.verdict.truth.reference.adapter import reference_of
from tests import made
from tests.as_user import fattn_probe
from tests.made import shape
from tests.verdict.made import predicted

START = shape(64, 8, 2, 7, 64)
SHAPE = (1, 3, 4, 16)


def case_of(text):
    return made.case_of(START + text)


def outputs(reference, rng):
    """Right outputs and wrong ones: noise, one row, one element, NaN."""
    for size in (0.5e-4, 1.9e-4, 2.1e-4, 1e-2):
        yield (reference + size * rng.standard_normal(SHAPE)).astype(np.float32)
    right = (reference + 1e-4 * rng.standard_normal(SHAPE)).astype(np.float32)
    for change in (np.nan, np.inf, 1e-3, 5e-3):
        odd = right.copy()
        odd[0, 1, 2, 3] += np.float32(change)
        yield odd
    row = right.copy()
    row[0, 1, 2] += np.float32(1.9e-3)
    yield row


@pytest.mark.parametrize("with_model", [False, True])
def test_the_limits_say_what_the_judge_says(with_model):
    rng = np.random.default_rng(1)
    reference = rng.standard_normal(SHAPE)
    model = (reference + 1e-4 * rng.standard_normal(SHAPE)).astype(np.float32) if with_model else None
    expected = Expected(lambda: predicted(SHAPE, 1e-4, 2e-3), model)
    verdicts = []
    for dst in [*outputs(reference, rng), *([model, model + np.float32(3e-5)] if with_model else [])]:
        passes = judge(dst, reference, Tolerance(), expected=expected).status == "pass"
        limits = choose_limits(reference, Tolerance(), expected, dst=dst, passes=passes)
        verdicts.append(passes)
        assert limits.hold(dst) == passes
    assert {True, False} == set(verdicts)


@pytest.mark.parametrize(
    ("arch", "way", "parts"),
    [
        (
            "gfx906",
            "file",
            ["built with\n`-DGGML_HIP=ON -DGPU_TARGETS=gfx906`", "`hipcc` takes", "a HIP error ends it"],
        ),
        ("90", "file", ["built with\n`-DGGML_CUDA=ON`", "`nvcc` takes the same words, but", "a CUDA error ends it"]),
        ("gfx1100", "line", ["cmake -B build -DGGML_HIP=ON -DGPU_TARGETS=gfx1100 &&", "test -b ROCm0 -o FLASH"]),
        ("89", "line", ["cmake -B build -DGGML_CUDA=ON &&", "test -b CUDA0 -o FLASH"]),
    ],
)
def test_the_readme_builds_for_the_vendor_of_the_gpu(arch, way, parts):
    case = case_of("")
    none = np.zeros(SHAPE)
    found = Found(none, Limits("tolerance", none, 0.0), None, {"arch": arch, "device": "sim:x"})
    text = readme(case, found, Chosen(way, case="FLASH_ATTN_EXT(hsk=64)" if way == "line" else ""), "")
    assert [part for part in parts if part not in text] == []


NEW_H = "bool ggml_prec_set_acc(\nvoid ggml_flash_attn_ext_set_prec(\nggml_flash_attn_ext_add_sinks( set_n_kv_max"
OLD_H = "void ggml_flash_attn_ext_set_prec(\nvoid ggml_flash_attn_ext_add_sinks("


def test_only_the_setters_that_the_op_needs():
    assert setters_of(case_of("").op, NEW_H) == ["ggml_prec_set_acc(dst, GGML_PREC_F32);"]
    assert setters_of(case_of("").op, OLD_H) == ["ggml_flash_attn_ext_set_prec(dst, GGML_PREC_F32);"]
    sinks = 'ggml_flash_attn_ext_add_sinks(dst, operand(ctx, backend, file, "sinks"));'
    assert setters_of(case_of("prec: default\nsinks: true").op, OLD_H) == [sinks]
    with pytest.raises(InputError, match="no ggml_flash_attn_ext_set_n_kv_max"):
        setters_of(case_of("n_kv_max: 64\nmask: {kind: sparse}").op, OLD_H)


SOURCES = ["pypi:xllamacpp==0.2.8", DEFAULT_SOURCE]


@pytest.mark.build
@pytest.mark.network
@pytest.mark.parametrize("source", SOURCES)
def test_the_file_compiles_with_ggmls_headers_alone(source, tmp_path):
    root = resolve(source).root
    text = "sinks: true\nmask: {kind: causal}" + ("\nn_kv_max: 64" if source == DEFAULT_SOURCE else "")
    (tmp_path / "reproduce.cpp").write_text(program_text(case_of(text), root))
    words = ["g++", "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I", str(root / "ggml/include")]
    subprocess.run([*words, "reproduce.cpp"], cwd=tmp_path, check=True)


def test_a_name_cannot_leave_its_comment(tmp_path):
    (tmp_path / "ggml/include").mkdir(parents=True)
    (tmp_path / "ggml/include/ggml.h").write_text(NEW_H)
    text = program_text(replace(case_of(""), name="a\n#error b\\\\"), tmp_path)
    assert "expected: a #error b//\n// Written by" in text


def test_the_inputs_are_a_case_file_too(tmp_path):
    case = case_of("mask: {kind: causal}\nsinks: true\ntype_K: q8_0\ntype_V: f16")
    inputs, path = make_inputs(case), tmp_path / "inputs.gguf"
    reference = reference_of(case.op, inputs)
    write_inputs(case, inputs, reference, choose_limits(reference, case.tolerance), path)
    again = read_case(path)
    assert again.op == case.op and again.digest == case.digest
    assert all(np.array_equal(again.inputs[name], inputs[name]) for name in inputs)
    file = read_gguf(path)
    expected = file.tensors["expected"]
    assert expected.ne == tuple(reversed(case.op.sizes.dst))
    assert np.array_equal(expected.data.view(np.float32), reference.astype(np.float32).ravel())
    assert file.one("reproduce.rmse_bound", float) == pytest.approx(np.sqrt(5e-4 * np.mean(reference**2)))


@pytest.mark.network
def test_a_case_that_is_not_run_is_written(tmp_path):
    made = json.loads(fattn_probe("reproduce", "gqa", "--out", tmp_path / "out", "--json").stdout)
    assert (
        made["files"]
        == ["README.md", "inputs.gguf", "reproduce.cpp"]
        == sorted(path.name for path in (tmp_path / "out").iterdir())
    )
    assert (made["way"], made["status"], made["judged_by"]) == ("file", None, "tolerance")
    text = (tmp_path / "out/README.md").read_text()
    assert "Not run yet" in text and "fattn-probe compare inputs.gguf" in text
    assert not list(Path(tmp_path).glob(".*"))


@pytest.mark.network
def test_the_folder_has_the_cases_name(tmp_path):
    fattn_probe("reproduce", "tile", "--case", "tile-hsk=40-n_q=1", cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["reproduce-tile-hsk=40-n_q=1"]
    assert file_name("FLASH_ATTN_EXT(hsk=64,nr23=[4,1]) ../x") == "FLASH_ATTN_EXT-hsk=64-nr23=-4-1-..-x"


@pytest.mark.network
def test_the_folder_must_be_new_or_empty(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_text("x")
    assert "not empty" in fattn_probe("reproduce", "gqa", "--out", tmp_path / "full", code=2).stderr
    assert "is a file" in fattn_probe("reproduce", "gqa", "--out", tmp_path / "full/mine", code=2).stderr
    (tmp_path / "empty").mkdir()
    fattn_probe("reproduce", "gqa", "--out", tmp_path / "empty")
    assert (tmp_path / "empty/README.md").is_file()


@pytest.mark.network
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("decode", "--as", "patch"), "test_flash_attn_ext has no parameters for this op"),
        (("tile",), "choose one with --case"),
        (("huge/dst",), "too large"),
        (("gqa", "--on", "sim:nothing"), "nothing"),
        (("gqa", "--as", "page"), "page"),
        (("gqa", "--on", "sim:h200,sim:v100"), "one target at a time"),
    ],
)
def test_what_cannot_be_reproduced_is_refused(words, said, tmp_path):
    assert said in fattn_probe("reproduce", *words, "--out", tmp_path / "out", code=2).stderr
    assert not (tmp_path / "out").exists()
