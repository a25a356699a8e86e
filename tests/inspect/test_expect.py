import pytest

from fattn_probe.inspect.expect import mismatches
from fattn_probe.inspect.facts import Choice, Facts

FACTS = Facts(
    about={},
    choice=Choice("mma_f16", "flash_attn_ext_f16<64>", {"DKQ": 64}, {"nthreads": 128}),
    launch={"ntiles_dst": 2, "blocks_num": [8, 1, 1], "use_stream_k": True, "scale": 0.125},
)


@pytest.mark.parametrize(
    "expect",
    [
        {"ntiles_dst": 2, "DKQ": 64, "nthreads": 128},
        {"blocks_num": [8, 1, 1], "blocks_num.x": 8, "blocks_num.z": 1},
        {"use_stream_k": True, "scale": 0.125},
        {},
    ],
)
def test_facts_that_hold(expect):
    assert mismatches(expect, FACTS) == []


def test_a_mismatch_shows_fact_expected_and_found():
    (found,) = mismatches({"ntiles_dst": 3, "DKQ": 64}, FACTS)
    assert str(found) == "ntiles_dst: expected 3, found 2"


def test_an_axis_that_differs():
    (found,) = mismatches({"blocks_num.x": 92}, FACTS)
    assert str(found) == "blocks_num.x: expected 92, found 8"


def test_an_unknown_fact_names_the_nearest_one():
    (found,) = mismatches({"ntiles_dts": 2}, FACTS)
    assert str(found) == "ntiles_dts: expected 2, but there is no such fact; the nearest is ntiles_dst"
