"""Upstream's own list as a suite."""

import pytest

from fattn_probe.daily.ops.parse import OpResult, parse_line
from fattn_probe.daily.ops.rounds import cases_of, separate_V_of
from fattn_probe.daily.regress.selection import upstream_cases

VARS = "mask=1,sinks=0,max_bias=0.000000,logit_softcap=0.000000,prec=f32,{types},permute=[0,1,2,3]{end}"
NEW = VARS.format(types="type_K={0},type_V={0}", end=",kv_view=1,v_is_view_of_k=0,n_kv_max=0")
SMALL = f"FLASH_ATTN_EXT(hsk=64,hsv=64,nh=4,nr23=[1,1],kv=113,nb=3,{NEW.format('f16')})"
OLD = f"FLASH_ATTN_EXT(hsk=576,hsv=512,nh=1,nr23=[4,1],kv=512,nb=1,{VARS.format(types='type_KV=f16', end='')})"
LISTED = f"""Testing 2 devices

Backend 1/2: CUDA0
  Device description: NVIDIA H200
  Device memory: 143156 MB (142000 MB free)

  {SMALL}: \x1b[1;32mSUPPORTED\x1b[0m
  {SMALL.replace("hsk=64", "hsk=66")}: \x1b[1;31mNOT SUPPORTED\x1b[0m
  {SMALL.replace("f16", "q1_0")}: \x1b[1;31mNOT SUPPORTED\x1b[0m
  {SMALL.replace("f16", "q2_0")}: \x1b[1;32mSUPPORTED\x1b[0m
  {SMALL}: \x1b[1;32mSUPPORTED\x1b[0m
Backend 2/2: CPU
  Skipping
"""


def test_the_list_becomes_cases_and_results():
    listed = [event for line in LISTED.splitlines() if isinstance(event := parse_line(line), OpResult)]
    cases, settled = upstream_cases(listed, separate_V=False)
    assert [case.name for case in cases] == [SMALL, f"{SMALL} #2"]
    sizes = cases[0].op.sizes
    assert (sizes.hsk, sizes.n_head, sizes.n_q, sizes.n_kv) == (64, 4, 3, 113)
    assert [result.status for result in settled] == ["unsupported", "unsupported", "lost"]
    assert settled[2].reason.startswith("cannot be replayed: FLASH_ATTN_EXT(...): type_K: found 'q2_0'")
    (case,), _ = upstream_cases([OpResult(SMALL, "ok")], separate_V=False)
    _, (result,) = upstream_cases([OpResult(SMALL, "not-supported")], separate_V=False)
    assert (result.name, result.digest) == (case.name, case.digest)


@pytest.mark.parametrize(
    ("source", "separate"),
    [
        ("v = ggml_view_4d(ctx, k, hsv_padded, kv, nh, nr23[1], k->nb[1], k->nb[2], k->nb[3], 0);", False),
        ("ggml_tensor * v = create_permuted(type_KV, hsv_padded, kv, nh, nr23[1], true);", True),
    ],
)
def test_whether_v_lies_in_k_is_read_from_the_source(tmp_path, source, separate):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test-backend-ops.cpp").write_text(source)
    assert separate_V_of(tmp_path) is separate
    (case,), _ = upstream_cases([OpResult(OLD, "ok")], separate_V=separate)
    assert (case.recipe.layout.V.kind == "view_of_K") is not separate


def test_the_lines_of_a_test_program_become_cases_but_for_those_that_none_expresses(tmp_path):
    cases = list(cases_of([SMALL, SMALL.replace("f16", "q2_0"), "FLASH_ATTN_EXT(new=1)"], tmp_path))
    assert [case.name for case in cases] == [SMALL]
