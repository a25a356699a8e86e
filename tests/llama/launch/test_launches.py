"""Launch records as the engines write them, kernels' names as compilers spell them, and compute capabilities."""

import json

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device.origin import MEASURED, Method, Origin
from fattn_probe.llama.launch.architecture import arch_number, copy_bytes, cuda_arch, fast_f16, generation_of, nvcc_arch
from fattn_probe.llama.launch.name import normalise, parse_kernel_name
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


def test_a_record_says_where_its_registers_are_from_and_none_is_not_known():
    assert (one(CUDA).origin, one(SIM).origin) == (MEASURED, Origin(Method.ASSUMED))
    other = json.dumps(json.loads(CUDA) | {"origin": "estimated b7551"})
    assert one(other).origin == Origin(Method.ESTIMATED, 7551)
    assert one(other).document()["origin"] == "estimated b7551"
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


def test_a_record_keeps_the_engine_s_line_and_one_cut_off_is_named():
    for line in (CUDA, SIM):
        assert json.loads(one(line).to_json()) == json.loads(line)
    document = one(SIM).document()
    assert document["template_args"]["ncols1"] == "8"
    assert one(json.dumps(document)) == one(SIM)
    with pytest.raises(InputError, match="launch records, line 2"):
        parse_launches(CUDA + "\n" + CUDA[:40])


VEC = (("D", "128"), ("ncols", "1"), ("type_K", "GGML_TYPE_F16"), ("type_V", "GGML_TYPE_F16"), ("b", "true"))
CUDA_DEQUANTIZE = (
    "void dequantize_block<32, 1, &(dequantize_q8_0(void const*, long, int, float2&)), __half>"
    "(void const*, __half*, long)"
)
GXX_DEQUANTIZE = (
    "void dequantize_block(const void*, dst_t*, int64_t) [with int qk = 32; int qr = 1; "
    "void (* dequantize_kernel)(const void*, int64_t, int, float2&) = dequantize_q8_0; dst_t = __half; "
    "int64_t = long int]"
)


NAMES = {"flash_attn_ext_vec": ["D", "ncols", "type_K", "type_V", "b"]}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("void flash_attn_ext_vec<128, 1, (ggml_type)1, (ggml_type)1, true>(char const*, float*)", NAMES),
        (
            "void flash_attn_ext_vec(const char*) [with int D = 128; int ncols = 1; ggml_type type_K = GGML_TYPE_F16; "
            "ggml_type type_V = GGML_TYPE_F16; bool b = true; uint32_t = unsigned int; half = __half]",
            None,
        ),
        (
            "void flash_attn_ext_vec(const char *) [D = 128, ncols = 1, type_K = GGML_TYPE_F16, "
            "type_V = (ggml_type)1, b = true]",
            None,
        ),
    ],
    ids=["CUDA, with the names of the source", "g++", "clang"],
)
def test_a_name_as_each_compiler_spells_it(text, names):
    name = parse_kernel_name(text, names=names)
    assert (name.base, name.args) == ("flash_attn_ext_vec", VEC)


def test_cuda_spelling_has_values_without_names_and_nested_ones_are_one_argument():
    name = parse_kernel_name("void flash_attn_ext_f16<64, 64, 8, 8, false, false, false>(char const*, int)")
    assert name.args == tuple(("", value) for value in ("64", "64", "8", "8", "false", "false", "false"))
    name = parse_kernel_name("void convert<tile<16, 8, __half2>, (bool)1>(tile<16, 8, __half2>*)")
    assert [value for _, value in name.args] == ["tile<16, 8, __half2>", "true"]


def test_a_function_as_argument_and_types_that_are_or_look_like_an_alias():
    cuda, gxx = parse_kernel_name(CUDA_DEQUANTIZE), parse_kernel_name(GXX_DEQUANTIZE)
    assert gxx.args == (("qk", "32"), ("qr", "1"), ("dequantize_kernel", "dequantize_q8_0"), ("dst_t", "half"))
    assert [value for _, value in cuda.args] == [value for _, value in gxx.args]
    text = GXX_DEQUANTIZE.replace("int64_t = long int]", "int64_t = long int; uint3 = uint3]")
    assert parse_kernel_name(text) == parse_kernel_name(GXX_DEQUANTIZE)


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("flash_attn_mask_to_KV_max", "flash_attn_mask_to_KV_max"),
        ("void plain(int)", "plain"),
        ("void ns::(anonymous namespace)::anon(int)", "anon"),
        ("void {anonymous}::anon()", "anon"),
    ],
)
def test_kernels_without_template_arguments(text, base):
    name = parse_kernel_name(text)
    assert (name.base, name.args) == (base, ())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("(bool)0", "false"),
        ("(int)-3", "-3"),
        ("8u", "8"),
        ("(ggml_type)8", "GGML_TYPE_Q8_0"),
        ("(ggml_type)9999", "(ggml_type)9999"),
        ("long unsigned int", "unsigned long"),
        ("__nv_bfloat16", "nv_bfloat16"),
        ("GGML_TYPE_Q4_K", "GGML_TYPE_Q4_K"),
        ("&_INTERNAL_12fad7d9_10_convert_cu_ecf17202::dequantize_q8_0", "dequantize_q8_0"),
    ],
)
def test_normalised_values(value, expected):
    assert normalise(value) == expected


def test_the_types_of_a_source_win_over_the_gguf_package():
    assert normalise("(ggml_type)77", {77: "q9_K"}) == "GGML_TYPE_Q9_K"


@pytest.mark.parametrize(("text", "number"), [("90", 90), ("9.0", 90), ("120a", 120), ("12.1", 121), (" 8.9\n", 89)])
def test_every_spelling_has_one_number(text, number):
    assert (arch_number(text), cuda_arch(text)) == (number, 10 * number)


@pytest.mark.parametrize("text", ["", "sm_90", "9", "[N/A]", "1200"])
def test_other_text_is_no_architecture(text):
    with pytest.raises(InputError, match="not a compute capability"):
        arch_number(text)


def test_compute_capabilities_in_nvccs_form():
    assert [nvcc_arch(text) for text in ("9.0\n", "8.9", "12.0", "12.1")] == ["90", "89", "120a", "121a"]


def test_generations():
    found = [generation_of(arch) for arch in (70, 75, 80, 89, 90, 100, 120)]
    assert [g.k_half for g in found] == [4, 8, 16, 16, 16, 16, 16]
    assert [g.columns for g in found] == [32, 16, 16, 16, 16, 16, 16]
    assert [fast_f16(arch) for arch in (52, 60, 61, 62, 70)] == [False, True, False, True, True]
    assert [copy_bytes(arch) for arch in (61, 70)] == [8, 16]
