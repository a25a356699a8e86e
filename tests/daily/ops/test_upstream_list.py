"""Upstream's own list on a simulated H200: cases drawn over head sizes, types, masks and kernels."""

import random
import re

import pytest

from fattn_probe.base.process import run
from fattn_probe.daily.ops.rounds import Timeouts, run_ops
from fattn_probe.llama.build import TEST_BACKEND_OPS, BuildRequest, ensure
from fattn_probe.llama.source import kernel_cases
from tests.made import H200

pytestmark = [pytest.mark.build, pytest.mark.network, pytest.mark.night]

SEED = 2026
SUPPORTED = re.compile(r"(FLASH_ATTN_EXT\([^()]*\)): (?:\x1b\[[0-9;]*m)?SUPPORTED")
# Numbers of cases of each kind. They share the few kernels below, because each takes seconds to compile.
DRAW = (
    (20, r"hsk=64,.*,nb=(32|75),mask=0,.*type_K=(f16|q8_0|q5_1|bf16),"),
    (20, r"hsk=64,.*,nb=3,mask=1,sinks=.,max_bias=8"),
    (15, r"hsk=64,.*nr23=\[4,.*,nb=(32|75),mask=1,sinks=.,max_bias=0"),
    (30, r"hsk=72,hsv=72,.*kv=(113|512|1024),"),
    (30, r"hsk=64,.*,kv=512,nb=1,mask=(0|1,sinks=.,max_bias=8).*type_K=(f16|f32|q4_0|q8_0),"),
    (20, r"hsk=128,.*nr23=\[(4|12),.*,kv=512,nb=1,"),
    (15, r"hsk=128,.*,nb=32,mask=0,"),
    (8, r"hsk=96,hsv=96,.*,nb=3,mask=0,"),
    (6, r"hsk=256,.*,nb=3,mask=0,"),
    (5, r"hsk=576,.*nr23=\[4,.*,nb=(32|75),"),
    (4, r"hsk=192,hsv=128,.*nr23=\[16,.*,nb=(3|32),"),
)
KERNELS = (
    *(f"mma 64,64,{columns}" for columns in ("8,1", "32,1", "64,1", "16,4")),
    *("tile 72,72", "vec 128,GGML_TYPE_F16,GGML_TYPE_F16"),
    *(f"vec 64,GGML_TYPE_{name},GGML_TYPE_{name}" for name in ("F16", "Q4_0", "Q8_0")),
    *(f"mma 96,96,{columns}" for columns in ("8,1", "32,1", "64,1", "16,4", "2,4")),  # head size 72 too
    *("mma 128,128,8,1", "mma 128,128,32,1", "mma 256,256,8,1"),
    *("mma 576,512,16,4", "mma 192,128,4,16"),
)


def drawn(cases):
    """The cases of the draw, in the order of upstream's list."""
    dice = random.Random(SEED)
    chosen: set = set()
    for count, pattern in DRAW:
        fitting = sorted({case for case in cases if re.search(pattern, case)} - chosen)
        assert len(fitting) >= count, pattern
        chosen.update(dice.sample(fitting, count))
    return [case for case in dict.fromkeys(cases) if case in chosen]


def test_cases_drawn_from_upstreams_list_pass(tree, session):
    kernels = [case for case in kernel_cases(tree) if case.name in KERNELS]
    program = ensure(BuildRequest(tree), kernels, [TEST_BACKEND_OPS]).test_backend_ops
    env = session.env(H200, TEST_BACKEND_OPS)
    listed = run([program, "support", "-b", H200.backend, "-o", "FLASH_ATTN_EXT"], env=env).stdout
    cases = drawn(SUPPORTED.findall(listed))
    report = run_ops(
        program,
        "test",
        H200.backend,
        only=cases,
        env=env,
        timeouts=Timeouts(),
        on_result=lambda result, total: None,
        complete=lambda symbol: session.complete(H200, symbol, TEST_BACKEND_OPS).test_backend_ops,
    )
    assert report.problem() is None
    assert report.counts["ok"] == len(cases) == 173
    assert len(kernels) == len(KERNELS)
