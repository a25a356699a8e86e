import pytest

from fattn_probe.daily.inspect.command import mismatches
from fattn_probe.daily.inspect.facts import Choice, Facts

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


@pytest.mark.parametrize(
    ("expect", "said"),
    [
        ({"ntiles_dst": 3, "DKQ": 64}, "ntiles_dst: expected 3, found 2"),
        ({"blocks_num.x": 92}, "blocks_num.x: expected 92, found 8"),
        ({"ntiles_dts": 2}, "ntiles_dts: expected 2, but there is no such fact; the nearest is ntiles_dst"),
    ],
)
def test_a_mismatch_shows_fact_expected_and_found_or_the_nearest_name(expect, said):
    assert mismatches(expect, FACTS) == [said]


def test_a_fact_that_is_not_there_is_not_null():
    (said,) = mismatches({"SM": None}, Facts(about={}))
    assert said.startswith("SM: expected None, but there is no such fact")
