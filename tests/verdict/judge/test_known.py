"""Upstream's known defects: each is recognised by its signs, and nothing that only looks similar."""

import re
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from fattn_probe.cases.op import Op, Params, Sizes
from fattn_probe.cases.op.op import Root
from fattn_probe.cases.op.values import view_values
from fattn_probe.llama.launch.kernel import columns_of_tile
from fattn_probe.machine.run.capture import Capture
from fattn_probe.machine.run.outcome import Finding
from fattn_probe.verdict.judge import cases
from fattn_probe.verdict.judge.bitwise import Check
from fattn_probe.verdict.judge.cases import Answers, JudgedCase, known_of
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.judge.known import (
    CONDITIONS,
    Failure,
    Known,
    best,
    by_defect,
    defects,
    fewer_than_32_columns,
    is_large,
    is_view_of_converted_K,
    known_defect,
    mask_ends_inside_tile,
    right_with_narrow_mask,
    right_with_V_in_K,
)
from fattn_probe.verdict.judge.origin import SourceOrigin
from fattn_probe.verdict.measure.verdict import Status, Verdict
from tests.made import H200, ROOT, launch_of, target
from tests.stand_in import StandIn
from tests.verdict.made import OneBuild


@dataclass(frozen=True)
class Seen(Failure):
    """A failure of a release, by its number."""

    build_number: str = "11549"


def known(failure):
    return known_defect(failure, SourceOrigin(failure.build_number, unchanged=True))


def masked(*sizes, type="f16", softcap=0.0, **more):
    """An op with a mask; the sizes are n_seq, n_head, n_head_kv, n_q, n_kv, hsk, hsv."""
    return Op.contiguous(Sizes(*sizes), Params(1.0, 0.0, softcap), (type, type), mask=True, **more)


OP = masked(1, 8, 2, 9, 256, 128, 128)
MMA16 = "flash_attn_ext_f16<128,128,16,1,false,false,false>"
INSIDE = f"{MMA16.replace(',', ', ')} at ggml/src/ggml-cuda/common.cuh:424"
LOADS = "flash_attn_ext_f16_load_tile<64, 4, 64, false, true, false> at ggml/src/ggml-cuda/common.cuh:822"
QUANTIZES = "quantize_q8_1_to_shared<float2, 16> at ggml/src/ggml-cuda/fattn-common.cuh:370"
VEC64 = "flash_attn_ext_vec<64,1,GGML_TYPE_Q8_0,GGML_TYPE_Q8_0,false>"
SCAN = "flash_attn_mask_to_KV_max<16>"


def strided(name, nb1):
    view = OP.tensors[name]
    return replace(OP, tensors={**OP.tensors, name: replace(view, nb=(view.nb[0], nb1, *view.nb[2:]))})


def quantised(hsk, type="q8_0"):
    return masked(1, 4, 4, 1, 256, hsk, hsk, type=type)


def padded(rows):
    """OP with so many rows of the mask, at the end of a larger allocation."""
    view = replace(OP.tensors["mask"], ne=(256, rows, 1, 1), offset=512 * 70)
    root = Root("mask", "f16", (256, 70 + rows, 1, 1))
    return replace(OP, tensors={**OP.tensors, "mask": view}, roots={**OP.roots, "mask": root})


def grouped(hsk, group):
    return masked(1, group, 1, 1, 256, hsk, 512)


def two_sequences(masks):
    op = masked(2, 8, 2, 16, 256, 128, 128)
    return replace(op, tensors={**op.tensors, "mask": replace(op.tensors["mask"], ne=(256, 16, 1, masks))})


def softcapped(hsk):
    return masked(1, 4, 4, 1, 256, hsk, hsk, softcap=30.0)


def misaligned(kernel=MMA16, frame=LOADS):
    return Finding("misaligned", "misaligned: a vector is accessed at 8", kernel, frames=(frame,))


TRAP = Finding(
    "trap", "trap: __trap() in overlay/ggml-cuda/template-instances/../common.cuh:424", MMA16, frames=(INSIDE,)
)
RACE = Finding("race", "race: byte 72 of the static shared memory is overwritten", VEC64, frames=(QUANTIZES,))
PAST_MASK = Finding(
    "out-of-bounds", "out-of-bounds: global memory is accessed at byte 18432 of mask (allocation 0)", SCAN
)
CUDA = Finding("CUDA error", "CUDA error: misaligned address")
LAUNCH_FAILURE = Finding("CUDA error", "CUDA error: unspecified launch failure")
BEFORE_Q = Finding("out-of-bounds", "out-of-bounds: global memory is accessed at byte -2129944572 of Q", MMA16)
VOLTA = Seen(OP, "7.0", MMA16, TRAP)
K_STRIDE = Seen(strided("K", 264), "9.0", MMA16, misaligned())
Q_STRIDE = Seen(strided("Q", 516), "9.0", MMA16, misaligned(frame=f"{MMA16} at fattn-mma-f16.cuh:900"))
Q8_RACE = Seen(quantised(64), "9.0", VEC64, RACE)
TO_F16 = "dequantize_block_q8_0_f16<false>"


def q8_at(byte, type="q8_0"):
    op = masked(1, 4, 1, 16, 256, 96, 96, type=type)
    return replace(op, tensors={**op.tensors, "V": replace(op.tensors["V"], offset=byte)})


Q8_ALIGNMENT = Seen(q8_at(102), "9.0", TO_F16, misaligned(TO_F16, f"{TO_F16} at ggml/src/ggml-cuda/convert.cu:61"))
SCANNED = Seen(OP, "9.0", SCAN, PAST_MASK)
BROADCAST = replace(SCANNED, op=two_sequences(1))
VEC_CAPPED = "flash_attn_ext_vec<64,1,GGML_TYPE_F16,GGML_TYPE_F16,true>"
SOFTCAP = Seen(
    softcapped(64), "9.0", VEC_CAPPED,
    replace(TRAP, kernel=VEC_CAPPED, frames=(f"{VEC_CAPPED} at ggml/src/ggml-cuda/common.cuh:424",)),
)  # fmt: skip
TILE40 = "flash_attn_tile<128,128,16,1,false>"
K_STRIDE_TILE = replace(K_STRIDE, kernel=TILE40, finding=misaligned(TILE40, f"{TILE40} at ggml/common.cuh:822"))
ABORTED = Finding("abort", "overlay/ggml/src/ggml-cuda/template-instances/../fattn-tile.cuh:1319: fatal error")
RATIO = Seen(grouped(512, 3), "6.1", "", ABORTED)
VEC_MISALIGNED = misaligned("flash_attn_ext_vec<128,1,GGML_TYPE_F16,GGML_TYPE_F16,false>", f"{VEC64} at common.cuh:822")
Q_STRIDE_VEC = Seen(strided("Q", 520), "9.0", VEC_MISALIGNED.kernel, VEC_MISALIGNED)
K_STRIDE_VEC = replace(Q_STRIDE_VEC, op=strided("K", 260))
Q_STRIDE_TILE = replace(K_STRIDE_TILE, op=strided("Q", 520))
MASKED = Seen(OP, "9.0", MMA16, only_masked_nan=True)
LATENT = masked(1, 16, 1, 4, 256, 576, 512)
LARGE_Q = masked(1, 40, 5, 1 << 17, 512, 128, 128)
Q_OFFSET = Seen(LARGE_Q, "9.0", MMA16, BEFORE_Q)
LARGE_K = Op.contiguous(Sizes(1, 128, 128, 1, 81920, 128, 128), Params(1.0), ("f16", "f16"))
VEC128 = "flash_attn_ext_vec<128,1,GGML_TYPE_F16,GGML_TYPE_F16,false>"
BEFORE_K = Finding("out-of-bounds", "out-of-bounds: global memory is accessed at byte -2009071616 of K", VEC128)
HEAD_OFFSET = Seen(LARGE_K, "9.0", VEC128, BEFORE_K)
AT_TWO_BARRIERS = Finding(
    "barrier-divergence",
    "barrier-divergence: the barrier in ../fattn-mma-f16.cuh:1192 is reached while other threads wait at the one in "
    "../fattn-mma-f16.cuh:1217",
    MMA16,
)
BARRIERS = Seen(OP, "8.9", MMA16, AT_TWO_BARRIERS, build_number="7551")
TILE72 = "flash_attn_tile<72,72,32,1,false>"
UNWRITTEN = Finding(
    "uninitialized-shared", "uninitialized-shared: byte 13872 of the static shared memory is read, but no", TILE72
)
COLUMNS = Seen(masked(1, 8, 2, 9, 256, 72, 72), "9.0", TILE72, UNWRITTEN)
MMA192 = "flash_attn_ext_f16<192,128,8,8,false,false>"
STILL_READ = Finding(
    "race",
    "race: byte 4612 of the dynamic shared memory is read, with no barrier between, after a write by thread (21,3,0)",
    MMA192,
    frames=("flash_attn_ext_f16_process_tile at ggml/src/ggml-cuda/fattn-mma-f16.cuh:1676",),
)
NEXT_TILE = Seen(masked(1, 8, 1, 512, 256, 192, 128), "8.6", MMA192, STILL_READ, build_number="10566")


def right_in_k(offset):
    """Whether an op's V is in K's rows, from an offset on."""

    def right_for(op, memory):
        K, V = op.tensors["K"], op.tensors["V"]
        return (V.root, V.type, V.ne, V.nb, V.offset) == ("K", "f16", (512, *K.ne[1:]), K.nb, offset)

    return right_for


MLA = Seen(LATENT, "9.0", "flash_attn_ext_f16<576,512,1,16,false,true>", right_for=right_in_k(128), build_number="7551")
QUANTISED = masked(1, 32, 1, 2, 256, 320, 256, type="q8_0")
IN_K = replace(QUANTISED.tensors["K"], name="V", ne=(256, 256, 1, 1))
AT_64 = replace(QUANTISED, tensors={**QUANTISED.tensors, "V": replace(IN_K, offset=68)})
K_OF_512_ROWS = replace(AT_64.roots["K"], ne=(AT_64.roots["K"].ne[0], 512, 1, 1))
VIEW_OFFSET = Seen(
    AT_64,
    "9.0",
    "flash_attn_ext_f16<320,256,1,32,false,true,false>",
    right_for=lambda op, memory: op.tensors["V"] == IN_K,
)
ELSEWHERE = replace(
    LATENT, tensors={**LATENT.tensors, "V": replace(LATENT.tensors["K"], name="V", ne=(512, 256, 1, 1))}
)
AT_THE_END = replace(ELSEWHERE, tensors={**ELSEWHERE.tensors, "V": replace(ELSEWHERE.tensors["V"], offset=128)})
MLA_APART = Seen(LATENT, "9.0", "flash_attn_ext_f16<576,512,4,16,false,true,false>", right_for=right_in_k(0))

PADDED_HEADS = Seen(
    masked(1, 14, 2, 8, 256, 64, 64, sinks=True),
    "9.0",
    "flash_attn_ext_f16<64,64,8,8,false,false,false>",
    Finding("out-of-bounds", "out-of-bounds: global memory is accessed at byte 56 of sinks (allocation 1)"),
)
BEFORE_MASK = Finding("out-of-bounds", "out-of-bounds: global memory is accessed at byte -16777216 of mask", TILE40)
LARGE_MASK = Seen(masked(1, 1, 1, 16384, 262144, 64, 64), "6.1", TILE40, BEFORE_MASK)
COMBINE128 = "flash_attn_combine_results<128>"
BEFORE_PARTS = Finding(
    "out-of-bounds",
    "out-of-bounds: global memory is accessed at byte -7712800768 of allocation 6, which has 18038862848 bytes",
    COMBINE128,
)
LARGE_OUTPUT = Seen(masked(1, 128, 16, 65536, 512, 128, 128), "6.1", COMBINE128, BEFORE_PARTS)
DIFFERENT_BITS = replace(Q8_RACE, finding=None, checks=("deterministic",))


def wide_mask(sequences, masks, heads=1):
    """An op with a mask of 640 columns for 512 KV rows and two queries."""
    op = masked(sequences, 4, 4, 2, 512, 128, 128, type="q8_0")
    root = Root("mask", "f16", (640, 2, heads, masks))
    view = replace(op.tensors["mask"], ne=root.ne, nb=root.nb)
    return replace(op, tensors={**op.tensors, "mask": view}, roots={**op.roots, "mask": root})


def right_if_each_row_begins_at_the_end_of_the_one_before(op, memory):
    view = op.tensors["mask"]
    rows = view_values(view, memory)
    return (rows.reshape(1, 1024) == np.arange(1024)).all() and view.ne == (512, 2, 1, 1) == op.roots[view.root].ne


MASK_STRIDE = Seen(
    wide_mask(1, 1),
    "9.0",
    VEC128.replace(",1,", ",2,"),
    right_for=right_if_each_row_begins_at_the_end_of_the_one_before,
    inputs={"mask": np.arange(1280, dtype=np.float16).view(np.uint8)},
)

RECOGNISED = {
    "volta-columns": [VOLTA, replace(VOLTA, build_number="9294"), replace(VOLTA, build_number="12000")],
    "k-stride": [
        K_STRIDE,
        replace(K_STRIDE, op=strided("V", 264), build_number="8929"),
        replace(K_STRIDE, finding=CUDA),
    ],
    "k-stride-tile": [K_STRIDE_TILE, replace(K_STRIDE_TILE, op=strided("V", 260), build_number="7551")],
    "k-stride-vec": [K_STRIDE_VEC, replace(K_STRIDE_VEC, op=strided("V", 260))],
    "gqa-ratio-abort": [
        RATIO,
        replace(RATIO, op=grouped(576, 6), build_number="8156"),
        replace(RATIO, cc="gfx1100"),
        replace(
            RATIO, op=grouped(512, 2), cc="7.0", finding=replace(ABORTED, message="a/../fattn.cu:234: fatal error")
        ),
    ],
    "q-stride": [Q_STRIDE, replace(Q_STRIDE, finding=CUDA)],
    "q-stride-tile": [Q_STRIDE_TILE, replace(Q_STRIDE_TILE, cc="gfx1100")],
    "q-stride-vec": [Q_STRIDE_VEC, replace(Q_STRIDE_VEC, finding=CUDA)],
    "softcap-head-size": [
        SOFTCAP,
        replace(SOFTCAP, finding=LAUNCH_FAILURE),
        replace(SOFTCAP, op=softcapped(96), kernel="flash_attn_tile<96,96,16,1,true>"),
        replace(SOFTCAP, finding=replace(SOFTCAP.finding, frames=("no_device_code at common.cuh:424",))),
        replace(SOFTCAP, op=softcapped(80), kernel="flash_attn_ext_f16<80,80,16,1,true,false,false>"),
    ],
    "q8-race": [Q8_RACE, replace(Q8_RACE, finding=replace(RACE, frames=(QUANTIZES, LOADS))), DIFFERENT_BITS],
    "q8-alignment": [Q8_ALIGNMENT, replace(Q8_ALIGNMENT, kernel="", finding=CUDA)],
    "sinks-padded-heads": [PADDED_HEADS],
    "mask-offset-tile": [LARGE_MASK],
    "combine-offset": [LARGE_OUTPUT, replace(LARGE_OUTPUT, cc="gfx906")],
    "mask-stride-vec": [MASK_STRIDE],
    "mask-scan": [SCANNED, replace(SCANNED, op=padded(9))],
    "scan-broadcast": [BROADCAST],
    "masked-rows": [MASKED, replace(MASKED, kernel=VEC128), replace(MASKED, kernel=TILE40)],
    "mla-v": [MLA, replace(MLA, op=ELSEWHERE), replace(MLA, build_number="7710")],
    "mla-v-apart": [
        MLA_APART,
        replace(MLA_APART, op=AT_THE_END),
        replace(MLA_APART, build_number="8156", kernel="flash_attn_ext_f16<576,512,4,16,false,true>"),
    ],
    "q-offset": [Q_OFFSET],
    "kv-head-offset": [
        HEAD_OFFSET,
        replace(HEAD_OFFSET, finding=replace(BEFORE_K, message=BEFORE_K.message.replace(" of K", " of V"))),
    ],
    "v-view-offset": [VIEW_OFFSET],
    "paired-barriers": [BARRIERS, replace(BARRIERS, build_number="10809")],
    "next-tile": [NEXT_TILE, replace(NEXT_TILE, build_number="11063")],
    "tile-columns": [COLUMNS, replace(COLUMNS, build_number="7551")],
}
OTHERS = [
    # volta-columns: another GPU, an older release, 32 columns, another place, another fault, another family
    replace(VOLTA, cc="7.5"),
    replace(VOLTA, build_number="8672"),
    replace(VOLTA, kernel=("flash_attn_ext_f16<128,128,32,1,false,false,false>")),
    replace(VOLTA, kernel=("flash_attn_ext_f16<128,128,4,8,false,false,false>")),
    replace(VOLTA, finding=replace(TRAP, frames=("mma<16, 8> at ggml/src/ggml-cuda/common.cuh:424",))),
    replace(VOLTA, finding=replace(TRAP, message="trap: __trap() in overlay/ggml-cuda/fattn-mma-f16.cuh:77")),
    replace(VOLTA, finding=replace(TRAP, kind="out-of-bounds")),
    replace(VOLTA, kernel=("flash_attn_tile<128,128,16,1,false>")),
    replace(VOLTA, finding=None),
    # k-stride: aligned rows, another function, another kernel, another fault; a CUDA error with other words
    replace(K_STRIDE, op=OP),
    replace(K_STRIDE, build_number="8672"),
    replace(K_STRIDE, op=strided("K", 272)),
    replace(K_STRIDE, finding=misaligned(frame="flash_attn_ext_f16_process_tile<128> at fattn-mma-f16.cuh:9")),
    replace(K_STRIDE, kernel="flash_attn_tile<128,128,16,1,false>"),
    replace(K_STRIDE, finding=replace(misaligned(), kind="race")),
    replace(K_STRIDE, finding=replace(CUDA, message="CUDA error: an illegal memory access was encountered")),
    replace(K_STRIDE, op=OP, finding=CUDA),
    # k-stride-tile: aligned rows, another function, another fault
    replace(K_STRIDE_TILE, op=strided("K", 272)),
    replace(K_STRIDE_TILE, finding=misaligned(TILE40, "mma<16, 8> at ggml/src/ggml-cuda/common.cuh:822")),
    replace(K_STRIDE_TILE, finding=replace(misaligned(TILE40, f"{TILE40} at common.cuh:8"), kind="race")),
    # k-stride-vec: aligned rows, another kernel, another function, another fault
    replace(K_STRIDE_VEC, op=strided("V", 272)),
    replace(K_STRIDE_VEC, kernel=TILE40),
    replace(K_STRIDE_VEC, finding=misaligned(VEC64, "flash_attn_ext_f16_load_tile<64> at common.cuh:822")),
    replace(K_STRIDE_VEC, finding=replace(VEC_MISALIGNED, kind="race")),
    # gqa-ratio-abort: ratios and head sizes that have kernels, a newer GPU, an older release, another place
    replace(RATIO, op=grouped(512, 8)),
    replace(RATIO, op=grouped(256, 3)),
    replace(RATIO, cc="7.5"),
    replace(RATIO, build_number="7551"),
    replace(RATIO, finding=replace(ABORTED, message="ggml/src/ggml-cuda/cpy.cu:3: fatal error")),
    replace(RATIO, finding=replace(ABORTED, message="fattn-tile.cuh:9: GGML_ASSERT(mask) failed")),
    # q-stride: rows of whole pairs
    replace(Q_STRIDE, op=strided("Q", 520)),
    # q-stride-tile: rows aligned to 16 bytes, another function, another fault
    replace(Q_STRIDE_TILE, op=strided("Q", 528)),
    replace(Q_STRIDE_TILE, finding=misaligned(TILE40, "flash_attn_tile_load_tile<32> at common.cuh:822")),
    replace(Q_STRIDE_TILE, finding=replace(Q_STRIDE_TILE.finding, kind="race")),
    # q-stride-vec: rows aligned to 16 bytes, another kernel, a function that reads K; a CUDA error with other words
    replace(Q_STRIDE_VEC, op=strided("Q", 528), finding=CUDA),
    replace(Q_STRIDE_VEC, finding=LAUNCH_FAILURE),
    replace(Q_STRIDE_VEC, op=strided("Q", 528)),
    replace(Q_STRIDE_VEC, kernel="flash_attn_tile<128,128,16,1,false>"),
    replace(Q_STRIDE_VEC, finding=misaligned(VEC64, "vec_dot_fattn_vec_KQ_f16<64, 8> at fattn-common.cuh:60")),
    # softcap-head-size: a head size with such kernels, no softcap, a kernel without, another place, another fault
    replace(SOFTCAP, op=softcapped(128)),
    replace(SOFTCAP, op=softcapped(128), finding=LAUNCH_FAILURE),
    replace(SOFTCAP, finding=CUDA),
    replace(SOFTCAP, op=quantised(64)),
    replace(SOFTCAP, kernel=VEC_CAPPED.replace("true", "false")),
    replace(SOFTCAP, finding=replace(SOFTCAP.finding, message="trap: __trap() in fattn-vec.cuh:7")),
    replace(SOFTCAP, finding=replace(SOFTCAP.finding, frames=("vec_dot<64> at common.cuh:424",))),
    replace(SOFTCAP, finding=replace(SOFTCAP.finding, kind="misaligned")),
    # scan-broadcast: a mask for each sequence, another tensor, another kernel
    replace(BROADCAST, op=two_sequences(2)),
    replace(BROADCAST, finding=replace(PAST_MASK, message="out-of-bounds: global memory is accessed at byte 9 of K")),
    replace(BROADCAST, kernel=MMA16),
    # q8-race: another head size, no quantised K, another function
    replace(Q8_RACE, op=quantised(128)),
    replace(Q8_RACE, op=quantised(64, "f16")),
    replace(Q8_RACE, finding=replace(RACE, frames=("vec_dot<64> at ggml/src/ggml-cuda/fattn-common.cuh:88",))),
    replace(Q8_RACE, kernel=(VEC64.replace("64", "128", 1))),
    # q8-alignment: a whole number of words, another type, another function or fault; a CUDA error with other words
    replace(Q8_ALIGNMENT, op=q8_at(204)),
    replace(Q8_ALIGNMENT, op=q8_at(54, "q4_0")),
    replace(Q8_ALIGNMENT, finding=misaligned(TO_F16, "dequantize_block_q4_0<half> at convert.cu:88")),
    replace(Q8_ALIGNMENT, finding=replace(Q8_ALIGNMENT.finding, kind="race")),
    replace(Q8_ALIGNMENT, finding=LAUNCH_FAILURE),
    replace(Q8_ALIGNMENT, op=q8_at(204), finding=CUDA),
    # another check too, another head size, no quantised K, another kernel
    replace(DIFFERENT_BITS, checks=("deterministic", "roundings")),
    replace(DIFFERENT_BITS, checks=("roundings",)),
    replace(DIFFERENT_BITS, checks=()),
    replace(DIFFERENT_BITS, op=quantised(128)),
    replace(DIFFERENT_BITS, op=quantised(64, "f16")),
    replace(DIFFERENT_BITS, kernel=MMA16),
    # sinks-padded-heads: heads that fill the tiles, another tensor, another kernel
    replace(PADDED_HEADS, kernel="flash_attn_ext_f16<64,64,8,1,false,false,false>"),
    replace(PADDED_HEADS, op=grouped(64, 16)),
    replace(PADDED_HEADS, finding=replace(PADDED_HEADS.finding, message="out-of-bounds: at byte 56 of Q")),
    replace(PADDED_HEADS, kernel="flash_attn_tile<64,64,8,8,false>"),
    # mask-offset-tile: a smaller mask, none, a place after its start, another tensor, another kernel
    replace(LARGE_MASK, op=OP),
    replace(LARGE_MASK, op=LARGE_K),
    replace(LARGE_MASK, finding=replace(BEFORE_MASK, message=BEFORE_MASK.message.replace("-", ""))),
    replace(LARGE_MASK, finding=replace(BEFORE_MASK, message=BEFORE_MASK.message.replace("of mask", "of K"))),
    replace(LARGE_MASK, kernel=MMA16),
    # combine-offset: a smaller output, a place after its start, another tensor, another kernel
    replace(LARGE_OUTPUT, op=OP),
    replace(LARGE_OUTPUT, finding=replace(BEFORE_PARTS, message=BEFORE_PARTS.message.replace("-7", "7"))),
    replace(LARGE_OUTPUT, finding=replace(BEFORE_PARTS, message=BEFORE_PARTS.message.replace("allocation 6", "Q"))),
    replace(LARGE_OUTPUT, kernel=TILE40),
    # mask-stride-vec: wrong for closer rows too, a mask as wide as K, none, one query a block, another kernel, a scan
    # that reads behind the only mask
    replace(MASK_STRIDE, right_for=lambda op, memory: False),
    replace(MASK_STRIDE, op=OP, right_for=lambda op, memory: True),
    replace(MASK_STRIDE, op=LARGE_K, right_for=lambda op, memory: True),
    replace(MASK_STRIDE, kernel=VEC128),
    replace(MASK_STRIDE, kernel=MMA16),
    replace(MASK_STRIDE, op=wide_mask(2, 1, heads=2), scanned=True, right_for=lambda op, memory: True),
    # mask-scan: enough rows of the mask, another tensor, another kernel
    replace(SCANNED, op=padded(16)),
    replace(SCANNED, finding=replace(PAST_MASK, message="out-of-bounds: global memory is accessed at byte 9 of K")),
    replace(SCANNED, kernel=MMA16),
    # mla-v: an output that is wrong for such a V too, a V that is there, another kernel, a later release
    replace(MLA, right_for=lambda op, memory: False),
    replace(MLA, op=AT_THE_END, right_for=lambda op, memory: True),
    replace(MLA, kernel="flash_attn_ext_f16<576,512,1,16,false,false>"),
    replace(MLA, kernel="flash_attn_tile<576,512,1,16,false>"),
    replace(MLA, build_number="8156"),
    # mla-v-apart: an output that is wrong for such a V too, a V that is there, another kernel, an earlier release
    replace(MLA_APART, right_for=lambda op, memory: False),
    replace(MLA_APART, op=ELSEWHERE, right_for=lambda op, memory: True),
    replace(MLA_APART, kernel="flash_attn_ext_f16<576,512,4,16,false,false,false>"),
    replace(MLA_APART, kernel="flash_attn_tile<576,512,1,16,false>"),
    replace(MLA_APART, build_number="7551"),
    # q-offset: a smaller Q, another tensor, a place after Q's start, another kernel
    replace(Q_OFFSET, op=OP),
    replace(Q_OFFSET, finding=replace(BEFORE_Q, message=BEFORE_Q.message.replace("of Q", "of K"))),
    replace(Q_OFFSET, finding=replace(BEFORE_Q, message=BEFORE_Q.message.replace("-", ""))),
    replace(Q_OFFSET, kernel="flash_attn_tile<128,128,16,1,false>"),
    # kv-head-offset: a smaller K, another tensor, a place after K's start, another kernel
    replace(HEAD_OFFSET, op=OP),
    replace(HEAD_OFFSET, finding=replace(BEFORE_K, message=BEFORE_K.message.replace("of K", "of mask"))),
    replace(HEAD_OFFSET, finding=replace(BEFORE_K, message=BEFORE_K.message.replace("-", ""))),
    replace(HEAD_OFFSET, finding=replace(BEFORE_K, kernel=MMA16), kernel=MMA16),
    # v-view-offset: an older release, not right for V at column 0, V there already, K in f16, K a view itself
    replace(VIEW_OFFSET, build_number="7551"),
    replace(VIEW_OFFSET, right_for=lambda op, memory: False),
    replace(VIEW_OFFSET, op=replace(AT_64, tensors={**AT_64.tensors, "V": IN_K}), right_for=lambda op, memory: True),
    replace(VIEW_OFFSET, op=QUANTISED, right_for=lambda op, memory: True),
    replace(VIEW_OFFSET, op=replace(AT_64, roots={**AT_64.roots, "K": K_OF_512_ROWS})),
    # paired-barriers: a later release, a barrier elsewhere, one that is not reached
    replace(BARRIERS, build_number="11063"),
    replace(BARRIERS, finding=replace(AT_TWO_BARRIERS, message=AT_TWO_BARRIERS.message.replace("mma-f16", "common"))),
    replace(BARRIERS, finding=replace(AT_TWO_BARRIERS, message="barrier-divergence: 124 of 128 threads wait")),
    replace(BARRIERS, kernel="flash_attn_tile<128,128,16,1,false>"),
    # next-tile: a later release, static shared memory, equal heads, another function
    replace(NEXT_TILE, build_number="11549"),
    replace(NEXT_TILE, finding=replace(STILL_READ, message=STILL_READ.message.replace("dynamic", "static"))),
    replace(NEXT_TILE, op=OP, kernel=MMA16),
    replace(NEXT_TILE, finding=replace(STILL_READ, frames=("flash_attn_ext_f16_iter<192> at fattn-mma-f16.cuh:9",))),
    # tile-columns: whole columns of lanes, dynamic shared memory, another fault, another kernel
    replace(COLUMNS, op=OP),
    replace(COLUMNS, finding=replace(UNWRITTEN, message=UNWRITTEN.message.replace("static", "dynamic"))),
    replace(COLUMNS, finding=replace(UNWRITTEN, kind="race")),
    replace(COLUMNS, kernel=MMA16),
    # masked-rows: a wrong output for another reason, a run that did not end
    replace(MASKED, only_masked_nan=False),
    replace(MASKED, finding=CUDA),
    replace(MASKED, kernel=SCAN),
]


@pytest.mark.parametrize(("id", "failure"), [(id, item) for id, found in RECOGNISED.items() for item in found])
def test_a_defect_is_recognised_by_its_signs(id, failure):
    assert known(failure) == Known(id)


@pytest.mark.parametrize("failure", OTHERS)
def test_what_lacks_a_sign_is_not_excused(failure):
    assert known(failure) == Known()


def test_every_defect_has_a_scenario_a_section_and_a_test_and_every_condition_is_used():
    page = (ROOT / "docs/findings.md").read_text()
    assert RECOGNISED.keys() == defects().keys()
    for id in defects():
        assert (ROOT / f"scenarios/known-faults/{id}.yaml").is_file()
        assert re.search(f"^### {id}$", page, re.MULTILINE)
    signs = [each for defect in defects().values() for each in defect.signs]
    assert {name for each in signs for name in each.when} == set(CONDITIONS)
    for each in signs:
        for pattern in (each.message, each.kernel, each.function):
            re.compile(pattern)
    assert by_defect(["", "volta-columns", "masked-rows", "volta-columns", ""]) == [
        f"2 fail because of volta-columns, a known defect of llama.cpp: {defects()['volta-columns'].about}",
        f"1 fails because of masked-rows, a known defect of llama.cpp: {defects()['masked-rows'].about}",
    ]


@dataclass(frozen=True)
class OneOp(StandIn):
    """A case as far as its op."""

    op: Op = OP


UNSTABLE = Check("deterministic", False, True, "2 of 3 runs gave other bits")


def known_on(on, case, kernel, verdict, *checks):
    """What is known of a verdict on a run of a kernel on a target."""
    capture = Capture("case", "", case.op, {}, None, (launch_of(kernel),), "wall", (), "CUDA", "", {})
    subject = JudgedCase(OneBuild(), Answers(case, {}), target(on), Checks(), arch=90, constants=None)
    return known_of(subject, verdict, checks, capture=capture)


def test_an_answer_to_another_op_is_not_compared_with_a_correct_run_of_the_case(monkeypatch):
    verdict_of = Mock(return_value=(Verdict(Status.PASS, ""),))
    monkeypatch.setattr(cases, "verdict_of", verdict_of)
    monkeypatch.setattr(cases, "known_defect", lambda failure, origin: Known(str(failure.right_for("another op", {}))))
    monkeypatch.setattr(JudgedCase, "launched", lambda subject, launches: subject)
    capture = Capture("case", "", OP, {}, None, (), "wall", (), "CUDA", "", {})
    subject = JudgedCase(OneBuild(), Answers(OneOp(), {}), H200, Checks(), 90, None, baseline=capture)
    assert known_of(subject, Verdict(Status.FAIL, "wrong"), capture=capture) == Known("True")
    ((judged, _),) = (call.args for call in verdict_of.mock_calls)
    assert (judged.case.op, judged.baseline) == ("another op", None)


def test_a_failure_whose_bits_differ_is_not_explained_and_other_bits_are_on_a_simulated_gpu_only():
    verdict = Verdict(Status.FAIL, "NaN", only_masked_nan=True)
    assert known_on("sim:h200", OneOp(), MMA16, verdict) == Known("masked-rows")
    assert known_on("sim:h200", OneOp(), MMA16, verdict, UNSTABLE) == Known()
    for on, found in (("sim:h200", Known("q8-race")), ("gpu", Known())):
        assert known_on(on, OneOp(quantised(64)), VEC64, Verdict(Status.PASS, ""), UNSTABLE) == found


def test_a_known_defect_comes_before_a_doubt_and_no_other_op_is_right_unless_it_was_held_against_it():
    doubt, certain = Known(doubt="maybe"), Known("id")
    assert best([doubt, certain]) is certain is best([certain, doubt])
    assert best([doubt]) is doubt and best([]) is None
    assert not Failure(OP, "9.0").right_for(OP, {})


@pytest.mark.parametrize(("columns", "few"), [((31, 1), True), ((8, 4), False), ((4, 4), True), ((16, 2), False)])
def test_32_columns_are_not_few(columns, few):
    kernel = f"flash_attn_ext_f16<128,128,{columns[0]},{columns[1]},false,false,false>"
    assert columns_of_tile(kernel) == columns
    assert fewer_than_32_columns(Failure(OP, "9.0", kernel)) == few
    assert not fewer_than_32_columns(Failure(OP, "9.0", "flash_attn_mask_to_KV_max<16>"))


def test_head_sizes_with_a_softcap_and_large_masks_are_counted_exactly():
    def holds(name, n_q=1, n_kv=256, hsk=64, softcap=30.0):
        return CONDITIONS[name](Failure(masked(1, 4, 4, n_q, n_kv, hsk, hsk, softcap=softcap), "9.0"))

    capped, large = "a softcap with a head size whose kernels have none", "a mask of more than 2^31 entries"
    assert [hsk for hsk in (64, 96, 128, 256, 512, 576) if holds(capped, hsk=hsk)] == [64, 96, 576]
    assert not holds(capped, softcap=0.0)
    assert [holds(large, n_q=1 << 15, n_kv=n_kv) for n_kv in (1 << 16, (1 << 16) + 32)] == [False, True]


def test_a_mask_ends_inside_a_tile_and_v_may_be_a_part_of_a_row_of_k():
    scan = "flash_attn_mask_to_KV_max<16>"
    assert [mask_ends_inside_tile(Failure(padded(rows), "9.0", scan)) for rows in (9, 15, 16)] == [True, True, False]
    assert not mask_ends_inside_tile(Failure(padded(9), "9.0", "flash_attn_tile"))
    bare = Op.contiguous(Sizes(1, 8, 2, 9, 256, 128, 128), Params(1.0), ("f16", "f16"))
    assert not mask_ends_inside_tile(Failure(bare, "9.0", scan))
    assert right(grouped(576, 4), 64) == right(grouped(576, 4), 0) == (True, 1)
    assert right(OP, 0) == right(grouped(512, 4), 0) == (False, 0)  # rows of one length
    wide = masked(1, 4, 1, 1, 256, 576, 512, type="q8_0")
    assert right(wide, 0) == (True, 1)
    assert right(wide, 64) == (False, 0)  # in the middle of blocks


def right(op, column):
    right_for = Mock(return_value=True)
    return right_with_V_in_K(Failure(op, "9.0", right_for=right_for), column), right_for.call_count


@pytest.mark.parametrize(
    ("type_", "offset", "is_one"), [("q8_0", 0, False), ("q8_0", 68, True), ("f32", 4, True), ("f16", 2, False)]
)
def test_a_view_of_a_converted_k_begins_later(type_, offset, is_one):
    op = masked(1, 4, 1, 1, 256, 576, 512, type=type_)
    K = op.tensors["K"]
    V = replace(K, name="V", ne=(512, *K.ne[1:]), offset=offset)
    assert is_view_of_converted_K(replace(op, tensors={**op.tensors, "V": V})) == is_one
    assert not is_view_of_converted_K(op)


@pytest.mark.parametrize(("nbytes", "large"), [((1 << 31, 1), False), (((1 << 31) + 1, 1), True), ((1, 1 << 32), True)])
def test_two_gibibytes_are_not_more_than_two(nbytes, large):
    views = {name: SimpleNamespace(root=name) for name in "KV"}
    roots = {name: SimpleNamespace(nbytes=size) for name, size in zip("KV", nbytes, strict=True)}
    op: Any = SimpleNamespace(tensors=views, roots=roots)
    assert is_large(op, "KV") == large


def test_the_scan_of_a_wider_mask_hides_what_the_wrong_rows_show():
    """It reads the rows of the first head where they are: two queries, 256 KV rows at a time, each sequence alone."""
    mask = np.full((2, 2, 2, 640), -np.inf, np.float16)
    mask[0, 1, 0, 300] = 1
    mask[0, 0, 1, 255] = mask[0, 0, 0, 513] = 1  # shown: one of the first 256 KV rows, and one that K does not have
    mask[1, 0, 0, :257] = mask[1, 0, 1, :] = 2  # shown in the second sequence: all
    right_for = Mock(return_value=True)
    for scanned in (False, True):
        inputs = {"mask": mask.view(np.uint8).ravel()}
        failure = Failure(wide_mask(2, 2, heads=2), "gfx906", inputs=inputs, scanned=scanned, right_for=right_for)
        assert right_with_narrow_mask(failure)
    rows, ended = (view_values(op.tensors["mask"], memory) for (op, memory), _ in right_for.call_args_list)
    assert all(op.tensors["mask"].offset == 0 for (op, _), _ in right_for.call_args_list)
    assert (rows[0, 0] > -np.inf).sum(axis=-1).tolist() == [0, 2] and (rows[0, 0, 1, [1, 128 + 255]] == 1).all()
    assert (ended[0, 0] > -np.inf).sum(axis=-1).tolist() == [0, 1] and ended[0, 0, 1, 1] == 1
    assert (ended[1] == rows[1]).all() and np.isfinite(rows[1, 0]).sum(axis=-1).tolist() == [257, 384]
