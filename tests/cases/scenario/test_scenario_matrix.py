import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.scenario import Scenario, expand, loads
from fattn_probe.cases.scenario.schema import Variation, case_names, variations

BASE = "version: 1\nabout: a test\nhsk: 64\nn_head: 4\nn_q: 3\nn_kv: 32\n"


def cases(matrix):
    return expand(loads(BASE + matrix).named("stem"))


def test_without_a_matrix_there_is_one_case_of_the_scenario_s_name():
    assert [case.name for case in cases("")] == ["stem"]


def test_product_then_include():
    made = cases(
        "matrix:\n  n_kv: [16, 48]\n  data.V.mean: [0, 1]\n  include: [{n_q: 1}]\ndata: {V: {kind: uniform}}\n"
    )
    assert [(case.name, case.op.sizes.n_kv, case.recipe.data.V.mean, case.op.sizes.n_q) for case in made] == [
        ("stem-n_kv=16-mean=0", 16, 0, 3),
        ("stem-n_kv=16-mean=1", 16, 1, 3),
        ("stem-n_kv=48-mean=0", 48, 0, 3),
        ("stem-n_kv=48-mean=1", 48, 1, 3),
        ("stem-n_q=1", 32, 0, 1),
    ]


def test_include_alone_makes_only_its_cases():
    assert [case.op.sizes.n_q for case in cases("matrix: {include: [{n_q: 1}, {n_q: 2}]}\n")] == [1, 2]


def test_a_whole_part_can_be_replaced():
    made = cases("mask: {kind: sliding_window, window: 3}\nmatrix:\n  mask: [{kind: none}, {kind: causal, past: 1}]\n")
    assert [case.name for case in made] == ["stem-mask=none", "stem-mask=causal"]
    assert ["mask" in case.op.tensors for case in made] == [False, True]


def test_a_kind_can_vary_where_the_file_gives_nothing_else():
    made = cases("data: {V: {kind: normal}}\nmatrix: {data.V.kind: [normal, uniform, fa3_outliers]}\n")
    assert [case.recipe.data.V.kind for case in made] == ["normal", "uniform", "fa3_outliers"]


def test_names_are_unique_and_safe_for_files():
    values: list[dict] = [
        {"a.x": "é/../b", "b.x": [0, 2]},
        {"a.x": "é ../b", "b.x": [0, 2]},
        {"m": {"kind": "k", "q": 1}},
    ]
    values += [{"m": {"kind": "k", "q": 2}}, {"m": {"kind": "other", "q": 2}}, {"flag": True}]
    assert case_names("s", [Variation(value, {}) for value in values]) == [
        "s-a.x=_.._b-b.x=02",
        "s-a.x=_.._b-b.x=02-2",
        "s-m=k+q1",
        "s-m=k+q2",
        "s-m=other",
        "s-flag=true",
    ]


def test_variations_know_where_they_come_from():
    assert variations({"n_q": [1, 2], "include": [{"n_kv": 3}]}) == [
        Variation({"n_q": 1}, {"n_q": ("matrix", "n_q", 0)}),
        Variation({"n_q": 2}, {"n_q": ("matrix", "n_q", 1)}),
        Variation({"n_kv": 3}, {"n_kv": ("matrix", "include", 0, "n_kv")}),
    ]


def test_a_scenario_made_in_python_is_checked_when_it_is_expanded():
    scenario = Scenario(version=1, about="x", hsk=64, n_head=3, n_head_kv=2, n_q=1, n_kv=1)
    with pytest.raises(InputError, match="n_head_kv: 2 K/V heads do not divide 3 heads"):
        expand(scenario)


def test_an_included_case_can_have_a_name_of_its_own():
    text = "version: 1\nabout: x\nhsk: 64\nn_head: 2\nn_q: 1\nn_kv: 256\nmatrix:\n  include:\n"
    cases = expand(loads(text + "  - {name: long-1, n_kv: 512}\n  - {n_kv: 768}\n  - {name: long-1, n_kv: 1024}\n"))
    assert [case.name for case in cases] == ["scenario-long-1", "scenario-n_kv=768", "scenario-long-1-2"]
    assert [case.op.sizes.n_kv for case in cases] == [512, 768, 1024]
    with pytest.raises(InputError, match="name"):
        loads(text + "  - {name: 'a b', n_kv: 512}\n")


def test_a_varied_mapping_without_a_kind_is_named_by_its_parts():
    made = cases("matrix:\n  layout: [{mask: {pad: 64}}, {mask: {pad: 1}}]\nmask: {kind: causal}\n")
    assert [case.name for case in made] == ["stem-layout=maskpad64", "stem-layout=maskpad1"]
