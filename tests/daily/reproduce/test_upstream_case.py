"""Ops as cases of upstream's test: found in its list, or added to it."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.scenario import expand, loads
from fattn_probe.cases.scenario.cases import op_of
from fattn_probe.cases.scenario.from_ops import from_ops
from fattn_probe.daily.ops.rounds import LIST
from fattn_probe.daily.reproduce.upstream_case import add_case, as_case, in_list, read_list, same
from fattn_probe.daily.reproduce.ways import pattern_of

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
START = "version: 1\nabout: x\nhsk: 64\nn_head: 8\nn_head_kv: 2\nn_q: 7\nn_kv: 256\n"


@pytest.fixture
def tests_of(tmp_path):
    def make(form):
        types, rest = FORMS[form]
        (tmp_path / "tests").mkdir(exist_ok=True)
        (tmp_path / LIST).write_text(NEW.replace("TYPES", types).replace("REST", rest))
        return read_list(tmp_path)

    return make


def scenario_op(text):
    (case,) = expand(loads(START + text))
    return case.op


@pytest.mark.parametrize(("form", "text"), EVERY)
def test_a_case_of_upstreams_has_its_own_name(tests_of, form, text):
    tests, op = tests_of(form), op_of(from_ops(text))
    case = as_case(op, tests)
    made = op_of(from_ops(tests.name(case)))
    assert same(made, op)
    if "q4_0" not in text:  # of a padded V nothing tells the size before
        assert tests.name(case) == text


def test_the_constructor_of_a_case(tests_of):
    tests = tests_of("new")
    case = as_case(op_of(from_ops(CASES["new"][0])), tests)
    assert tests.constructor(case) == (
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


def test_the_expression_for_a_case_is_exact():
    assert pattern_of("FLASH_ATTN_EXT(nr23=[4,1],max_bias=8.000000)") == r"^nr23=\[4,1\],max_bias=8\.000000$"


def test_params_are_compared_as_float32(tests_of):
    op = op_of(from_ops(CASES["new"][0]))
    other = replace(op, params=replace(op.params, scale=op.params.stored.scale))
    assert same(op, other)
    assert not same(op, replace(op, params=replace(op.params, logit_softcap=31.0)))
