"""The parts of a reproduction: limits, the C++ file, the inputs, the README, the folder.

Ops as cases of upstream's test, found in its list or added to it; and the first way that shows a failure.
"""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.base.fingerprint import Fingerprint
from fattn_probe.cases.device import Target, load_devices, parse_target
from fattn_probe.cases.op.case_file import read_case
from fattn_probe.cases.op.gguf_file import read_gguf
from fattn_probe.cases.scenario.cases import one_case, op_of
from fattn_probe.cases.scenario.cases import resolve as resolved
from fattn_probe.cases.scenario.from_ops import from_ops
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cases.scenario.schema import Tolerance
from fattn_probe.cli import flags
from fattn_probe.cli.reproduce import file_name
from fattn_probe.daily.ops.parse import OpResult
from fattn_probe.daily.ops.rounds import LIST
from fattn_probe.daily.regress.history import open_history
from fattn_probe.daily.regress.records import Identity, Result, StoredCase
from fattn_probe.daily.reproduce import ways
from fattn_probe.daily.reproduce.command import (
    ReproduceRequest,
    program_text,
    readme,
    setters_of,
    write,
    write_inputs,
)
from fattn_probe.daily.reproduce.found import Found, is_uid, past_result
from fattn_probe.daily.reproduce.ways import (
    Chooser,
    Chosen,
    ShownWay,
    add_case,
    as_case,
    in_list,
    pattern_of,
    read_list,
    same,
    words_of,
)
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from fattn_probe.llama.source.git import revision_of
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.verdict.measure.expected import Expected
from fattn_probe.verdict.measure.limits import Limits, choose_limits
from fattn_probe.verdict.measure.verdict import judge
from fattn_probe.verdict.truth.reference.adapter import reference_of
from tests import made
from tests.as_user import fattn_probe
from tests.llama.source.fake_index import FATTN, git, tagged
from tests.made import H200, shape
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
            ["built with\n`-DGGML_HIP=ON -DGPU_TARGETS=gfx906`", "`hipcc` takes", "a HIP error aborts it"],
        ),
        ("90", "file", ["built with\n`-DGGML_CUDA=ON`", "`nvcc` takes the same flags, but", "a CUDA error aborts it"]),
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


def test_uncommitted_changes_are_in_the_folder(tmp_path):
    """Nobody else has them; the README says to apply them first."""
    source = tagged(tmp_path / "source", "// tagged")
    none = np.zeros(SHAPE)
    line, patch = Chosen("line", case="FLASH_ATTN_EXT(hsk=64)"), Chosen("patch", case="FLASH_ATTN_EXT(hsk=64)")
    for name, text, chosen in (("clean", "", line), ("edited", "// edited\n", line), ("patched", "// more\n", patch)):
        (source / FATTN).write_text((source / FATTN).read_text() + text)
        found = Found(none, Limits("tolerance", none, 0.0), None, {"arch": "90", "revision": revision_of(source)})
        request = ReproduceRequest(case_of(""), tmp_path / name, None, H200, told=("",))
        files = write(request, source, {}, found, chosen)
        said = (request.out / "README.md").read_text()
        assert ("edits.patch" in files) == ("`git apply edits.patch` in a clean" in said) == bool(text)
        assert ("Then:" in said) == (chosen is patch)
        if text:
            git(source, "stash", "-q")
            git(source, "apply", request.out / "edits.patch")
            assert (source / FATTN).read_text().endswith(text)
            git(source, "checkout", "-q", ".")
            git(source, "stash", "pop", "-q")


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
    assert "expected output: a #error b//\n// Written by" in text


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
        (("gqa", "--as", "page"), "Invalid value for '--as': 'page' is not one of"),
        (("gqa", "--on", "sim:h200,sim:v100"), "one target at a time"),
    ],
)
def test_what_cannot_be_reproduced_is_refused(words, said, tmp_path):
    assert said in fattn_probe("reproduce", *words, "--out", tmp_path / "out", code=2).stderr
    assert not (tmp_path / "out").exists()


NEW = (Path(__file__).parent / "upstream_test.cpp").read_text()
FORMS = {
    "old": ("ggml_type type_KV = GGML_TYPE_F16", ""),
    "new": (
        "ggml_type type_K = GGML_TYPE_F16, ggml_type type_V = GGML_TYPE_F16",
        ", bool kv_view = true, bool v_is_view_of_k = false, int64_t n_kv_max = 0",
    ),
}
KV = "kv_view=1,v_is_view_of_k=0,n_kv_max=0"
CASES = {
    "old": [
        "FLASH_ATTN_EXT(hsk=64,hsv=64,nh=4,nr23=[4,1],kv=512,nb=3,mask=1,sinks=0,max_bias=0.000000,"
        "logit_softcap=0.000000,prec=f32,type_KV=f16,permute=[0,1,2,3])",
        "FLASH_ATTN_EXT(hsk=72,hsv=72,nh=4,nr23=[1,3],kv=113,nb=75,mask=0,sinks=1,max_bias=0.000000,"
        "logit_softcap=10.000000,prec=def,type_KV=q4_0,permute=[0,2,1,3])",
        "FLASH_ATTN_EXT(hsk=576,hsv=512,nh=1,nr23=[4,1],kv=512,nb=3,mask=1,sinks=0,max_bias=8.000000,"
        "logit_softcap=0.000000,prec=f32,type_KV=f16,permute=[0,1,2,3])",
    ],
    "new": [
        "FLASH_ATTN_EXT(hsk=128,hsv=128,nh=4,nr23=[12,1],kv=512,nb=1,mask=1,sinks=1,max_bias=8.000000,"
        f"logit_softcap=30.000000,prec=f32,type_K=q8_0,type_V=f16,permute=[0,2,1,3],{KV})",
        "FLASH_ATTN_EXT(hsk=576,hsv=512,nh=1,nr23=[16,2],kv=4096,nb=2,mask=1,sinks=0,max_bias=0.000000,"
        "logit_softcap=0.000000,prec=f32,type_K=f16,type_V=f16,permute=[0,1,2,3],kv_view=1,v_is_view_of_k=1,n_kv_max=768)",
        "FLASH_ATTN_EXT(hsk=40,hsv=40,nh=2,nr23=[1,1],kv=17,nb=5,mask=0,sinks=0,max_bias=0.000000,"
        "logit_softcap=0.000000,prec=def,type_K=f16,type_V=f16,permute=[0,1,2,3],kv_view=0,v_is_view_of_k=0,n_kv_max=0)",
    ],
}
EVERY = [pytest.param(form, text, id=f"{form}-{number}") for form in CASES for number, text in enumerate(CASES[form])]


@pytest.fixture
def tests_of(tmp_path):
    def make(form):
        types, rest = FORMS[form]
        (tmp_path / "tests").mkdir(exist_ok=True)
        (tmp_path / LIST).write_text(NEW.replace("TYPES", types).replace("REST", rest))
        return read_list(tmp_path)

    return make


def scenario_op(text):
    return made.case_of(shape(64, 8, 2, 7, 256, text)).op


@pytest.mark.parametrize(("form", "text"), EVERY)
def test_a_case_of_upstreams_has_its_own_name(tests_of, form, text):
    tests, op = tests_of(form), op_of(from_ops(text))
    case = as_case(op, tests)
    assert same(op_of(from_ops(tests.name(case))), op)
    if "q4_0" not in text:  # of a padded V nothing tells the size before
        assert tests.name(case) == text


def test_the_constructor_of_a_case(tests_of):
    tests = tests_of("new")
    assert tests.constructor(as_case(op_of(from_ops(CASES["new"][0])), tests)) == (
        "new test_flash_attn_ext(128, 128, 4, {12, 1}, 512, 1, true, true, 8.0f, 30.0f, GGML_PREC_F32, "
        "GGML_TYPE_Q8_0, GGML_TYPE_F16, {0, 2, 1, 3}, true, false, 0)"
    )


@pytest.mark.parametrize(
    "text",
    [
        "scale: 0.3",
        "mask: {kind: causal}\nlayout: {mask: {pad: 64}}",
        "layout: {K: {kind: view, rows: 300}}",
        "layout: {K: {kind: view, rows: 512, offset: 8}, V: {kind: view, rows: 512, offset: 8}}",
        "hsv: 32\nlayout: {V: {kind: view_of_K, offset: 32}}",
        "layout: {Q: {kind: view, pad: 2}}",
    ],
)
def test_what_the_constructor_cannot_say(tests_of, text):
    assert as_case(scenario_op(text), tests_of("new")) is None


def test_contiguous_K_is_only_for_the_new_form(tests_of):
    assert as_case(scenario_op(""), tests_of("old")) is None
    assert as_case(scenario_op(""), tests_of("new")) is not None


def test_the_list_is_searched_by_op_not_by_name(tests_of, tmp_path):
    tests_of("new")
    lines = [*CASES["new"], CASES["new"][0].replace(")", ",q_range=20)")]
    assert in_list(op_of(from_ops(CASES["new"][1])), lines, tmp_path) == CASES["new"][1]
    assert in_list(op_of(from_ops(lines[-1])), lines[1:], tmp_path) is None
    assert in_list(scenario_op(""), lines, tmp_path) is None


@pytest.mark.parametrize("tool", [["git", "apply"], ["patch", "-p1", "-s", "-i"]])
def test_a_patch_adds_the_case_to_the_list_of_tests(tests_of, tmp_path, tool):
    tests = tests_of("new")
    case = as_case(scenario_op(""), tests)
    (tmp_path / "add.patch").write_text(add_case(tests, case, "why"))
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    subprocess.run([*tool, "add.patch"], cwd=tmp_path, check=True)
    line = f"    // why\n    test_cases.emplace_back({tests.constructor(case)});\n\n    return test_cases;\n}}\n"
    before, _, after = (tmp_path / LIST).read_text().partition(line)
    assert before.endswith("(64, 64, 4));\n\n")
    assert "make_test_cases_perf" in after and "why" not in after


def test_a_test_that_is_not_known_is_refused(tests_of, tmp_path):
    tests_of("new")
    text = (tmp_path / LIST).read_text()
    for changed in (
        text.replace("int64_t nh = 32", "int64_t heads = 32"),
        text.replace("_eval()", "_evaluation()"),
        "",
    ):
        (tmp_path / LIST).write_text(changed)
        with pytest.raises(InputError, match="is not one that fattn-probe knows"):
            read_list(tmp_path)
    (tmp_path / LIST).unlink()
    with pytest.raises(InputError, match=r"this source has no tests/test-backend-ops\.cpp"):
        read_list(tmp_path)


def test_the_expression_for_a_case_is_exact_and_its_failure_in_words():
    assert pattern_of("FLASH_ATTN_EXT(nr23=[4,1],max_bias=8.000000)") == r"^nr23=\[4,1\],max_bias=8\.000000$"
    assert words_of(OpResult("x", "fail", error=0.1, threshold=0.0005)) == "NMSE = 0.100000000 > 0.000500000"
    assert words_of(OpResult("x", "fail")) == "FAIL"


def test_params_are_compared_as_float32(tests_of):
    op = op_of(from_ops(CASES["new"][0]))
    assert same(op, replace(op, params=replace(op.params, scale=op.params.stored.scale)))
    assert not same(op, replace(op, params=replace(op.params, logit_softcap=31.0)))


OP = op_of(from_ops(CASES["new"][0]))


@pytest.fixture
def choose(tmp_path, monkeypatch):
    """The way for OP, with what upstream's list has and which of its runs fail: by the list as it is, and patched."""
    types, rest = FORMS["new"]
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test-backend-ops.cpp").write_text(NEW.replace("TYPES", types).replace("REST", rest))

    def make(wanted, *, listed=(), line=(), patch=(), target=H200, fails=True, op=OP):
        outcomes = {"line": list(line), "patch": list(patch)}

        def run(session, target, mode, **_rest):
            status = outcomes["patch" if session.options.patches else "line"].pop(0)
            return SimpleNamespace(results=(OpResult(CASES["new"][0], status, "NaN" if status == "fail" else ""),))

        monkeypatch.setattr(ways, "run_ops_on", run)
        monkeypatch.setattr(ways, "upstream_list", lambda *_: [SimpleNamespace(case=case) for case in listed])
        tree: Any = SimpleNamespace(root=tmp_path)
        return Chooser(Session(RunOptions(None)), tree, op, target, H200).choose(wanted, fails=fails)

    return make


IN_LIST = CASES["new"]
OTHERS = CASES["new"][1:]


def test_a_line_comes_first_then_a_patch_then_a_file(choose):
    found = choose("auto", listed=IN_LIST, line=["fail"] * 3)
    assert (found.way, found.case, found.patch, found.reasons) == ("line", IN_LIST[0], "", ())
    assert str(found.shown) == "upstream's test failed in 3 of 3 runs, the last time with: NaN"
    found = choose("auto", listed=OTHERS, patch=["fail"] * 3)
    assert (found.way, found.case) == ("patch", IN_LIST[0])
    assert "+    test_cases.emplace_back(new test_flash_attn_ext(128, 128, 4, {12, 1}, 512, 1, " in found.patch
    assert found.reasons == ("line: this source's test-backend-ops has no case with this op",)
    found = choose("auto", listed=OTHERS, patch=["ok"] * 3)
    assert found.way == "file"
    assert found.reasons[1] == "patch: upstream's test failed in 0 of 3 runs"


def test_a_failure_must_show_every_time(choose):
    found = choose("auto", listed=IN_LIST, line=["fail", "ok", "fail"])
    assert found.way == "file"
    assert found.reasons == (
        "line: upstream's test failed in 2 of 3 runs, the last time with: NaN",
        "patch: test-backend-ops already has this op in its list (--as line)",
    )


@pytest.mark.parametrize("how", [{"fails": False}, {"target": None}, {"target": Target("cpu")}])
def test_what_cannot_fail_in_upstreams_test_is_a_file(choose, how):
    assert choose("auto", listed=IN_LIST, **how) == ways.Chosen("file")


def test_the_wanted_way_is_taken_whether_it_fails_or_not(choose):
    assert choose("line", listed=IN_LIST, line=["ok"] * 3).shown == ShownWay(3, 0)
    assert choose("line", listed=IN_LIST, target=None).shown is None
    assert choose("patch", listed=OTHERS, target=None).patch
    assert choose("file", listed=IN_LIST).way == "file"
    with pytest.raises(InputError, match="line: this source's test-backend-ops has no case"):
        choose("line", listed=OTHERS)
    with pytest.raises(InputError, match="already has this op in its list"):
        choose("patch", listed=IN_LIST)


def test_a_source_without_upstreams_test(choose, tmp_path):
    (tmp_path / "tests/test-backend-ops.cpp").unlink()
    found = choose("auto", listed=IN_LIST)
    assert found.way == "file"
    assert all("this source has no tests/test-backend-ops.cpp" in reason for reason in found.reasons)


OPS = "FLASH_ATTN_EXT(hsk=64,hsv=64,nh=4,nr23=[4,1],kv=512,nb=3,type_K=f16,type_V=f16)"
IDENTITY = Identity("m", "sim:h200", "9.0", "", "sim", "release", "pypi:x==1", "1", "14628-fixup-layout", "0.1")


@pytest.fixture
def found(tmp_path):
    def make(*cases, identity=IDENTITY, suite="quick", name=""):
        with open_history(tmp_path / "h.db") as history:
            run = history.begin(identity, suite)
            history.know([StoredCase.of(case) for case in cases], identity, [])
            for case in cases:
                history.add(run, Result(case.name, case.digest, "fail"))
            history.end(run)
            return past_result(history, run.uid[:8], name)

    return make


def gqa():
    return one_case(flags.scenario_path("gqa"), "")


def test_cases_of_runs_are_found_as_they_were_run(found):
    past = found(gqa())
    assert past.case == gqa()
    assert (past.on, past.source, past.patches) == ("sim:h200", "pypi:x==1", ("faults/14628-fixup-layout",))
    assert found(gqa(), suite="mine", name="gqa").case == gqa() and past.file == "gqa"
    few = found(gqa(), identity=replace(IDENTITY, device="sim:h200-5"), suite="quick/few-sms")
    assert str(parse_target(few.on, load_devices())) == few.on
    case = resolved(from_ops(OPS), OPS, "upstream")
    assert found(case, suite="upstream").case == case
    assert found(gqa(), identity=replace(IDENTITY, engine="cuda", device="NVIDIA H200", patches="")).on == "gpu"


def test_what_is_not_known_any_more_is_refused(found):
    other = replace(gqa(), source=replace(gqa().source, seed=5))
    with pytest.raises(InputError, match="has this case with the same inputs"):
        found(other)
    with pytest.raises(InputError, match="which is not shipped"):
        found(gqa(), identity=replace(IDENTITY, patches="mine"))
    with pytest.raises(InputError, match="not fail in exactly one case, and --case is missing; the failed cases: none"):
        found()
    with pytest.raises(InputError, match="has no case 'gqb'; the failed cases: gqa"):
        found(gqa(), name="gqb")


@pytest.mark.network
def test_a_run_of_a_source_that_has_changed_is_refused(found, tmp_path):
    identity = replace(IDENTITY, source=DEFAULT_SOURCE, patches="", fingerprint=Fingerprint(tree="as it was"))
    assert found(gqa(), identity=identity).tree == "as it was"
    with open_history(tmp_path / "h.db") as history:
        uid = history.runs()[0].uid[:8]
    words = ("reproduce", uid, "--case", "gqa", "--history", tmp_path / "h.db", "--out", tmp_path / "out")
    assert f"have changed since run {uid}" in fattn_probe(*words, code=2).stderr
    fattn_probe(*words, "--source", DEFAULT_SOURCE)


def test_the_beginning_of_a_runs_name():
    assert is_uid("27d4ae61") and is_uid("2" * 32)
    assert not any(map(is_uid, ("gqa", "27d", "27d4ae6g", "2" * 33)))
