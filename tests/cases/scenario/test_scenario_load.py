from contextlib import suppress
from pathlib import Path

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.scenario import Scenario, check, expand, load, loads
from fattn_probe.cases.scenario.schema import Variation, case_names, variations
from tests.made import SCENARIOS

HEAD = "version: 1\nabout: a test\n"
TYPES = "f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, iq4_nl"
MASKS = "alibi, blocks, causal, masked_rows, masked_tiles, none, random, sequences, sliding_window, sparse, sum"
SHAPE = "hsk: 64\nn_head: 4\nn_head_kv: 2\nn_q: 3\nn_kv: 32\n"


def mistakes(text):
    with pytest.raises(InputError) as caught:
        loads(text, "x.yaml")
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()


def mistake(more):
    """The only mistake of a valid file with added lines, the first of which is line 8; without that line's place."""
    (message,) = mistakes(HEAD + SHAPE + more)
    assert message.startswith("x.yaml:")
    return message.removeprefix("x.yaml:8: ")


def test_defaults():
    (case,) = expand(loads(HEAD + "hsk: 64\nn_head: 4\nn_q: 3\nn_kv: 32\n"))
    op, sizes, params = case.op, case.op.sizes, case.op.params
    assert (sizes.hsv, sizes.n_head_kv, sizes.n_seq, op.type_K, op.type_V) == (64, 4, 1, "f16", "f16")
    assert (params.scale, params.prec, params.max_bias, params.n_kv_max, op.has_sinks) == (0.125, 10, 0, 0, False)
    assert set(case.op.tensors) == {"Q", "K", "V"}


def test_all_mistakes_and_missing_keys_are_reported_together_in_the_order_of_the_file():
    text = HEAD + "hsk: 64\nn_haed: 4\nn_head: 4\nn_q: seven\nn_kv: true\ntype_K: q8_1\nmask: {kind: causl}\n"
    unknown, *rest = mistakes(text)
    assert unknown.startswith("x.yaml:4: n_haed: unknown key, allowed: about, data, ")
    assert unknown.endswith("; did you mean 'n_head'?")
    assert rest == [
        "x.yaml:6: n_q: found 'seven', allowed: a whole number",
        "x.yaml:7: n_kv: found true, allowed: a whole number",
        f"x.yaml:8: type_K: found 'q8_1', allowed: {TYPES}; did you mean 'q8_0'?",
        f"x.yaml:9: mask.kind: found 'causl', allowed: {MASKS}; did you mean 'causal'?",
    ]
    assert mistakes("about: x\n") == [
        "x.yaml:1: version: missing, allowed: version of this schema",
        "x.yaml:1: hsk: missing, allowed: head size of Q and K (DKQ)",
        "x.yaml:1: n_head: missing, allowed: attention heads of Q",
        "x.yaml:1: n_q: missing, allowed: queries",
        "x.yaml:1: n_kv: missing, allowed: KV rows of the op",
    ]


MISTAKES = Path(__file__).with_name("mistakes.txt").read_text().strip().split("\n\n")[1:]


@pytest.mark.parametrize("text", MISTAKES)
def test_one_mistake(text):
    more, _, message = text.partition("\n=> ")
    assert mistake(more) == message


def test_heads_that_do_not_divide_are_refused_with_those_that_do():
    (message,) = mistakes(HEAD + "hsk: 64\nn_head: 14\nn_head_kv: 4\nn_q: 3\nn_kv: 32\n")
    assert message.startswith("x.yaml:5: n_head_kv: 4 K/V heads do not divide 14 heads")
    assert message.endswith("allowed: 1, 2, 7, 14")


def test_mistakes_of_a_matrix_are_placed_where_it_makes_them_and_it_has_limits():
    assert mistakes(
        HEAD
        + SHAPE
        + "matrix:\n  n_kv: [16, x]\n  include:\n    - n_q: 1\n      type_K: q8_1\n"
        + "  data.V.meen: [1]\n  mask.past: [1]\n"
    ) == [
        "x.yaml:9: matrix.n_kv.1: found 'x', allowed: a whole number",
        f"x.yaml:12: matrix.include.0.type_K: found 'q8_1', allowed: {TYPES}; did you mean 'q8_0'?",
        "x.yaml:13: matrix.data.V.meen.0: unknown key, allowed: kind, mean, scale, seed; did you mean 'mean'?",
        f"x.yaml:14: matrix.mask.past.0: missing, allowed: {MASKS}",
    ]
    numbers = ", ".join(map(str, range(1, 102)))
    assert mistake(f"matrix:\n  n_q: [{numbers}]\n  n_kv: [{numbers}]") == (
        "matrix: makes 10201 cases, allowed: at most 10000"
    )
    assert mistake("matrix:\n  n_q: 3") == "x.yaml:9: matrix.n_q: found 3, allowed: a list"


def test_a_file_is_checked_once(monkeypatch):
    seen = []

    def refusals(scenario):
        seen.append(scenario.n_kv)
        return []

    monkeypatch.setattr(check, "refusals", refusals)
    cases = expand(loads(HEAD + SHAPE + "matrix:\n  n_kv: [16, 48]\n"))
    assert ([case.op.sizes.n_kv for case in cases], seen) == ([16, 48], [16, 48])


def test_numbers_with_an_exponent_are_numbers():
    scenario = loads(HEAD + SHAPE + "tolerance: {nmse: 1e-5, max_abs: 1E+2}\n")
    assert (scenario.tolerance.nmse, scenario.tolerance.max_abs) == (1e-5, 100)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="cannot read the scenario: No such file"):
        load(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read the scenario"):
        load(tmp_path / "binary.yaml")


JUNK = ["", "~", "-1", "1e400", "1e39", "{}", "[1, {}]", "{a: 1}", "x", "!!binary x", "2026-01-01"]
JUNK += ["{[1]: 2}", "&a [*a]"]


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("name", ["q8-cache", "known-faults/masked-rows", "sparse", "biased-v"])
def test_any_wrong_value_is_reported_as_a_mistake(name, junk):
    """A traceback would fail this test; the changed file may even be valid."""
    lines = (SCENARIOS / f"{name}.yaml").read_text().splitlines()
    for number, line in enumerate(lines):
        if ":" in line and not line.startswith("#"):
            text = "\n".join([*lines[:number], line.partition(":")[0] + ": " + junk, *lines[number + 1 :]])
            with suppress(InputError):
                expand(loads(text))


def test_expect_takes_facts():
    scenario = loads(HEAD + SHAPE + "expect: {ntiles_dst: 2, launch.grid: [8, 1, 1], kernel: mma, uniform: true}\n")
    assert scenario.expect == {"ntiles_dst": 2, "launch.grid": [8, 1, 1], "kernel": "mma", "uniform": True}


BASE = "version: 1\nabout: a test\nhsk: 64\nn_head: 4\nn_q: 3\nn_kv: 32\n"


def cases(matrix):
    return expand(loads(BASE + matrix).named("stem"))


def test_a_matrix_is_its_product_then_include_and_without_one_there_is_one_case():
    assert [case.name for case in cases("")] == ["stem"]
    assert [case.op.sizes.n_q for case in cases("matrix: {include: [{n_q: 1}, {n_q: 2}]}\n")] == [1, 2]
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


def test_a_whole_part_or_a_kind_can_vary():
    made = cases("mask: {kind: sliding_window, window: 3}\nmatrix:\n  mask: [{kind: none}, {kind: causal, past: 1}]\n")
    assert [case.name for case in made] == ["stem-mask=none", "stem-mask=causal"]
    assert ["mask" in case.op.tensors for case in made] == [False, True]
    made = cases("data: {V: {kind: normal}}\nmatrix: {data.V.kind: [normal, uniform, fa3_outliers]}\n")
    assert [case.recipe.data.V.kind for case in made] == ["normal", "uniform", "fa3_outliers"]
    made = cases("matrix:\n  layout: [{mask: {pad: 64}}, {mask: {pad: 1}}]\nmask: {kind: causal}\n")
    assert [case.name for case in made] == ["stem-layout=maskpad64", "stem-layout=maskpad1"]


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
