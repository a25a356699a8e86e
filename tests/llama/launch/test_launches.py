"""Launch records as the engines write them."""

import json

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device.origin import MEASURED, Method, Origin
from fattn_probe.llama.launch.record import parse_launches

CUDA = (
    '{"order":0,"kernel":"void flash_attn_ext_f16<64, 64, 8, 1, false, false>(char const*, float*)","grid":[92,1,1],'
    '"block":[32,4,1],"shared":40960,"regs":128,"static_shared":0,"max_blocks_per_sm":2,'
    '"origin":"measured"}'
)
SIM = (
    '{"order":3,"kernel":"void flash_attn_ext_f16(const char*, float*) [with int DKQ = 64; int DV = 64; '
    "int ncols1 = 8; int ncols2 = 1; bool use_logit_softcap = false; bool mla = false; uint32_t = unsigned int]"
    '","grid":[92,1,1],"block":[32,4,1],"shared":40960,"regs":255,"origin":"assumed"}'
)


def one(line):
    (record,) = parse_launches(line)
    return record


def test_both_engines_give_the_same_record():
    cuda, sim = one(CUDA), one(SIM)
    assert cuda.spelling == sim.spelling == "flash_attn_ext_f16<64,64,8,1,false,false>"
    assert cuda == sim
    assert hash(cuda) == hash(sim)
    assert dict(sim.template_args)["ncols1"] == "8"
    assert (cuda.regs, sim.regs, cuda.max_blocks_per_sm, sim.max_blocks_per_sm) == (128, 255, 2, None)


def test_a_record_says_where_its_registers_are_from():
    assert (one(CUDA).origin, one(SIM).origin) == (MEASURED, Origin(Method.ASSUMED))
    other = json.dumps(json.loads(CUDA) | {"origin": "estimated b7551"})
    assert one(other).origin == Origin(Method.ESTIMATED, 7551)
    assert one(other).document()["origin"] == "estimated b7551"


def test_a_record_without_an_origin_is_not_taken_for_known():
    line = {name: value for name, value in json.loads(CUDA).items() if name != "origin"}
    assert not one(json.dumps(line)).origin.known
    assert one(json.dumps(line)).document()["origin"] == "unknown"
    assert json.loads(one(json.dumps(line)).to_json()) == line


@pytest.mark.parametrize("origin", ["guessed", "measured 7551", "measured b", ""])
def test_an_origin_of_another_kind_is_refused(origin):
    with pytest.raises(InputError, match="not one of measured, estimated, assumed, unknown"):
        one(json.dumps(json.loads(CUDA) | {"origin": origin}))


@pytest.mark.parametrize(
    "change", [{"grid": [91, 1, 1]}, {"block": [32, 8, 1]}, {"shared": 0}, {"kernel": "void flash_attn_ext_f16<64>()"}]
)
def test_what_makes_records_differ(change):
    assert one(json.dumps(json.loads(CUDA) | change)) != one(CUDA)


def test_only_the_first_run_counts():
    other = CUDA.replace('"order":0', '"order":1').replace("flash_attn_ext_f16", "flash_attn_stream_k_fixup")
    text = "\n".join(['{"run":0}', CUDA, other, '{"run":1}', CUDA, other, ""])
    assert [launch.kernel for launch in parse_launches(text)] == ["flash_attn_ext_f16", "flash_attn_stream_k_fixup"]


def test_a_record_keeps_the_engine_s_line():
    for line in (CUDA, SIM):
        assert json.loads(one(line).to_json()) == json.loads(line)


def test_a_line_cut_off_is_named():
    with pytest.raises(InputError, match="launch records, line 2"):
        parse_launches(CUDA + "\n" + CUDA[:40])


def test_a_json_document_s_launch_is_the_record_again():
    document = one(SIM).document()
    assert document["template_args"]["ncols1"] == "8"
    assert one(json.dumps(document)) == one(SIM)
