"""Random scenarios: legal, the same for the same seed, and reaching all of the schema."""

import typing
from collections import Counter

import pytest
import yaml

from fattn_probe.cases.op.op import TYPE_NAMES
from fattn_probe.cases.scenario import expand, loads
from fattn_probe.cases.scenario.data import AnyData
from fattn_probe.cases.scenario.mask import AnyMask
from fattn_probe.cases.scenario.schema import Scenario
from fattn_probe.lab.fuzz.scenarios import case_of, draw, flop, simplest

NOT_drawn = {"version", "about", "tolerance", "inspect", "expect", "device", "matrix"}


@pytest.fixture(scope="module")
def drawn():
    return [draw(7, number) for number in range(3000)]


def kinds_of(union):
    return {part.model_fields["kind"].annotation.__args__[0] for part in typing.get_args(union)}


def test_every_case_is_legal_small_and_written_as_compare_takes_it(drawn):
    for settings in drawn[:200]:
        text = yaml.safe_dump({"version": 1, "about": "one", **settings})
        (case,) = expand(loads(text))
        assert case.digest == case_of(settings, "one").digest
        assert case.op.sizes.flop == flop(settings) <= 100e6


def test_the_same_seed_and_number_give_the_same_case_and_others_do_not(drawn):
    assert [draw(7, number) for number in range(50)] == drawn[:50]
    digests = Counter(case_of(settings, "one").digest for settings in drawn[:500])
    assert max(digests.values()) == 1
    assert draw(8, 0) != drawn[0]


def test_every_setting_kind_and_type_of_the_schema_is_drawn(drawn):
    assert {key for settings in drawn for key in settings} == Scenario.model_fields.keys() - NOT_drawn
    masks = [settings.get("mask", {"kind": "none"}) for settings in drawn]
    assert {mask["kind"] for mask in masks} == kinds_of(AnyMask)
    data = {data["kind"] for settings in drawn for data in settings.get("data", {}).values()}
    assert data | {"uniform"} == kinds_of(AnyData)
    layouts = [layout for settings in drawn for layout in settings.get("layout", {}).values()]
    assert {layout["kind"] for layout in layouts if "kind" in layout} == {"view", "view_of_K"}
    assert {key for layout in layouts for key in layout} == {
        "kind", "permute", "rows", "heads", "offset", "pad", "outside", "per_sequence", "columns",
    }  # fmt: skip
    assert {settings.get("type_K", "f16") for settings in drawn} == set(TYPE_NAMES)


def test_the_regions_of_old_bugs_are_reached(drawn):
    def share(holds):
        return sum(map(holds, drawn)) / len(drawn)

    assert share(lambda s: s["n_kv"] % 32) > 0.2
    assert share(lambda s: s["n_q"] & (s["n_q"] - 1)) > 0.3
    assert share(lambda s: s.get("layout", {}).get("V", {}).get("kind") == "view_of_K") > 0.1
    assert share(lambda s: s.get("data", {}).get("Q", {}).get("kind") == "far_below_zero") > 0.01
    assert share(lambda s: s["n_kv"] >= 4096) > 0.05
    assert share(lambda s: s.get("n_seq", 1) > 1) > 0.15


def test_the_simplest_form_is_the_same_scenario(drawn):
    for settings in drawn[:200]:
        full = settings | {"n_seq": settings.get("n_seq", 1), "type_K": settings.get("type_K", "f16")}
        assert simplest(full) == settings
        assert case_of(full, "one").digest == case_of(settings, "one").digest
