"""Names of cases as each era's test-backend-ops prints them, compared with the ops of its build_graph."""

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.op.op import block_size, row_size, type_size
from fattn_probe.cases.scenario import expand, loads
from fattn_probe.cases.scenario.command import from_ops_yaml
from fattn_probe.cases.scenario.data import Uniform
from fattn_probe.cases.scenario.from_ops import defaults_in, from_ops

OLD = [  # xllamacpp 0.2.8, 0.2.12 and 2026.4.8672
    "FLASH_ATTN_EXT(hsk=64,hsv=64,nh=4,nr23=[1,1],kv=113,nb=1,mask=1,sinks=1,max_bias=0.000000,logit_softcap=0.000000,"
    "prec=f32,type_KV=f16,permute=[0,1,2,3])",
    "FLASH_ATTN_EXT(hsk=128,hsv=128,nh=4,nr23=[4,3],kv=512,nb=35,mask=1,sinks=0,max_bias=8.000000,"
    "logit_softcap=0.000000,prec=def,type_KV=q8_0,permute=[0,2,1,3])",
    "FLASH_ATTN_EXT(hsk=72,hsv=72,nh=4,nr23=[1,1],kv=512,nb=3,mask=0,sinks=0,max_bias=0.000000,"
    "logit_softcap=10.000000,prec=f32,type_KV=q4_0,permute=[0,1,2,3])",
    "FLASH_ATTN_EXT(hsk=576,hsv=512,nh=1,nr23=[16,1],kv=1024,nb=32,mask=1,sinks=0,max_bias=0.000000,"
    "logit_softcap=0.000000,prec=f32,type_KV=f16,permute=[0,2,1,3])",
]
NEW = [  # xllamacpp 2026.9.11063 and 2026.10.11549
    "FLASH_ATTN_EXT(hsk=64,hsv=64,nh=4,nr23=[1,1],kv=512,nb=75,mask=1,sinks=0,max_bias=0.000000,logit_softcap=0.000000,"
    "prec=f32,type_K=q8_0,type_V=q8_0,permute=[0,2,1,3],kv_view=0,v_is_view_of_k=0,n_kv_max=0)",
    "FLASH_ATTN_EXT(hsk=128,hsv=96,nh=2,nr23=[8,2],kv=5003,nb=3,mask=1,sinks=0,max_bias=0.000000,"
    "logit_softcap=0.000000,prec=f32,type_K=q8_0,type_V=f16,permute=[0,2,1,3],kv_view=1,v_is_view_of_k=0,n_kv_max=257)",
    "FLASH_ATTN_EXT(hsk=576,hsv=512,nh=1,nr23=[16,2],kv=4096,nb=2,mask=1,sinks=0,max_bias=0.000000,"
    "logit_softcap=0.000000,prec=f32,type_K=f16,type_V=f16,permute=[0,1,2,3],kv_view=1,v_is_view_of_k=1,n_kv_max=768)",
    "FLASH_ATTN_EXT(hsk=65,hsv=67,nh=4,nr23=[1,1],kv=17,nb=75,mask=0,sinks=0,max_bias=0.000000,logit_softcap=1.000000,"
    "prec=f32,type_K=f16,type_V=f16,permute=[0,1,2,3],kv_view=1,v_is_view_of_k=0,n_kv_max=0)",
]
LARGE_LOGITS = (
    "FLASH_ATTN_EXT(hsk=256,hsv=256,nh=4,nr23=[4,1],kv=1024,nb=75,mask=1,sinks=0,max_bias=0.000000,"
    "logit_softcap=10.000000,prec=f32,type_K=f16,type_V=f16,permute=[0,1,2,3],kv_view=1,v_is_view_of_k=0,n_kv_max=0,"
    "q_range=20)"
)


def variables(text):
    """{name: text} of a case, read in the simplest way."""
    inner = text[text.index("(") + 1 : text.rindex(")")].replace("[", "").replace("]", "")
    found, key = {}, ""
    for part in inner.split(","):
        if "=" in part:
            key = part.partition("=")[0]
            found[key] = part.partition("=")[2]
        else:
            found[key] += "," + part
    return found


def permuted(type_, ne, permute, is_view):
    """create_permuted of test_flash_attn_ext, ggml_view_4d and ggml_permute: (root ne, ne, nb)."""
    ne_perm = [0] * 4
    for i in range(4):
        ne_perm[permute[i]] = ne[i]
    root = [ne_perm[0], (2 if is_view else 1) * ne_perm[1], *ne_perm[2:]]
    nb = [type_size(type_), row_size(type_, root[0])]
    nb += [nb[1] * root[1], nb[1] * root[1] * root[2]]
    out_ne, out_nb = [0] * 4, [0] * 4
    for i in range(4):
        out_ne[permute[i]], out_nb[permute[i]] = ne_perm[i], nb[i]
    return tuple(root), tuple(out_ne), tuple(out_nb)


@pytest.mark.parametrize("text", OLD + NEW)
def test_operands_lie_as_upstream_s_build_graph_puts_them_with_its_params(text):
    ops = variables(text)
    type_K, type_V = ops.get("type_K", ops.get("type_KV")), ops.get("type_V", ops.get("type_KV"))
    hsk, hsv = (
        -(-int(ops[key]) // block_size(type_)) * block_size(type_) for key, type_ in (("hsk", type_K), ("hsv", type_V))
    )
    (nr2, nr3), nh, kv, nb = map(int, ops["nr23"].split(",")), int(ops["nh"]), int(ops["kv"]), int(ops["nb"])
    permute, is_view = [int(digit) for digit in ops["permute"].split(",")], ops.get("kv_view", "1") == "1"
    (case,) = expand(from_ops(text))
    expected = {
        "Q": permuted("f32", (hsk, nb, nh * nr2, nr3), permute, False),
        "K": permuted(type_K, (hsk, kv, nh, nr3), permute, is_view),
        "V": permuted(type_V, (hsv, kv, nh, nr3), permute, is_view),
    }
    if ops.get("v_is_view_of_k", "1" if (hsk, hsv) == (576, 512) else "0") == "1":
        root, ne, nb_ = expected["K"]
        expected["V"] = (root, (hsv, *ne[1:]), nb_)
    for name, (root, ne, strides) in expected.items():
        view = case.op.tensors[name]
        assert (case.op.roots[view.root].ne, view.ne, view.nb, view.offset) == (root, ne, strides, 0)
    assert ("mask" in case.op.tensors, "sinks" in case.op.tensors) == (ops["mask"] == "1", ops["sinks"] == "1")
    if ops["mask"] == "1":
        assert case.op.tensors["mask"].ne == (kv, nb, 1, nr3)
    assert case.op.params.scale == pytest.approx(int(ops["hsk"]) ** -0.5, rel=1e-7)
    assert (case.op.params.max_bias, case.op.params.logit_softcap) == (
        float(ops["max_bias"]),
        float(ops["logit_softcap"]),
    )
    assert case.op.params.prec == {"f32": 10, "def": 0}[ops["prec"]]
    assert case.op.params.n_kv_max == int(ops.get("n_kv_max", "0"))


def test_large_logits_have_a_wider_Q():
    (case,) = expand(from_ops(LARGE_LOGITS))
    Q, K = case.recipe.data.Q, case.recipe.data.K
    assert isinstance(Q, Uniform) and isinstance(K, Uniform)
    assert (Q.scale, K.scale) == (20, 1)


@pytest.mark.parametrize("text", [*OLD, *NEW, LARGE_LOGITS])
def test_round_trip_through_a_file(text):
    (direct,), (read) = expand(from_ops(text)), loads(from_ops_yaml(text))
    assert [case.digest for case in expand(read)] == [direct.digest]
    assert variables(read.about.removeprefix("test-backend-ops ").join("()")).keys() <= variables(text).keys()


def test_an_old_name_gets_the_old_defaults_and_its_mla_case_a_v_of_its_own():
    assert expand(from_ops(OLD[3]))[0].op.tensors["V"].root == "K"
    assert expand(from_ops(OLD[3], separate_V=True))[0].op.tensors["V"].root == "V"
    assert defaults_in("FLASH_ATTN_EXT(hsk=64,hsv=64,nh=4,nr23=[1,1],kv=96,nb=8,type_KV=f16)") == {
        "mask": "1", "sinks": "0", "max_bias": "0", "logit_softcap": "0", "prec": "f32",
        "permute": "[0,1,2,3]"}  # fmt: skip
    assert expand(from_ops(f"  {NEW[0]}: \x1b[1;32mOK\x1b[0m\n"))[0].op.sizes.hsk == 64


def test_upstream_s_defaults_fill_what_is_left_out_and_the_file_names_them():
    text = "FLASH_ATTN_EXT(hsk=64,hsv=64,kv=512,nb=3,mask=0,sinks=1,max_bias=0,logit_softcap=0,type_K=q8_0)"
    filled = {"nh": "32", "nr23": "[1,1]", "prec": "f32", "permute": "[0,1,2,3]"}
    filled |= {"type_V": "f16", "kv_view": "1", "v_is_view_of_k": "0", "n_kv_max": "0"}
    assert defaults_in(text) == filled
    whole = text[:-1] + "".join(f",{key}={value}" for key, value in filled.items()) + ")"
    (case,), (complete,) = expand(from_ops(text)), expand(from_ops(whole))
    assert case.digest == complete.digest
    first, rest = from_ops_yaml(text).split("\n", 1)
    assert first.startswith("# omitted, so with test-backend-ops' defaults: nh=32, nr23=[1,1], prec=f32, ")
    assert expand(loads(first + "\n" + rest))[0].digest == complete.digest
    assert not from_ops_yaml(whole).startswith("#")


def test_mistakes_are_reported_together_and_sizes_beyond_ggml_s_are_refused():
    text = OLD[0].replace("hsk=64", "hsk=a").replace("sinks=1", "sniks=1").replace("nr23=[1,1]", "nr23=[1]")
    with pytest.raises(InputError) as caught:
        from_ops(text.replace("mask=1", "mask=2").replace("type_KV=f16", "type_KV=q1_0"))
    lines = str(caught.value).splitlines()
    assert lines[0] == "FLASH_ATTN_EXT(...): hsk: found 'a', allowed: a whole number of at least 1"
    assert lines[1] == "FLASH_ATTN_EXT(...): nr23: found '[1]', allowed: two whole numbers, such as [4,1]"
    assert lines[2] == "FLASH_ATTN_EXT(...): mask: found '2', allowed: 0 or 1"
    assert lines[3].startswith("FLASH_ATTN_EXT(...): sniks: unknown key")
    assert lines[3].endswith("did you mean 'sinks'?")
    assert lines[4].startswith("FLASH_ATTN_EXT(...): type_KV: found 'q1_0', allowed: f32, f16, ")
    assert len(lines) == 5
    with pytest.raises(InputError, match=r"FLASH_ATTN_EXT\(\.\.\.\): n_kv: found 99999999999, allowed: less than"):
        from_ops(OLD[0].replace("kv=113", "kv=99999999999"))
    with pytest.raises(InputError, match=r"kv: found '9{60}', allowed: a whole number"):
        from_ops(OLD[0].replace("kv=113", "kv=" + 5000 * "9"))


@pytest.mark.parametrize("text", ["", "MUL_MAT(type_a=f32)", "FLASH_ATTN_EXT"])
def test_text_that_is_not_a_case(text):
    with pytest.raises(InputError, match="is not a case of test-backend-ops"):
        from_ops(text)
