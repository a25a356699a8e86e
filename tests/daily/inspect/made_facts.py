"""Facts as an inspection leaves them, made by arithmetic."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from fattn_probe.cases.device.origin import MEASURED
from fattn_probe.daily.inspect.facts import Choice, Decision, Facts, KernelLaunch, MissingFacts, TensorFacts, Term
from fattn_probe.llama.launch.tiles import BlockWork, Grid, Limits, TileWork, blocks_in_turn, stream_k_blocks

numbers = st.integers(1, 40)
grids = st.builds(Grid, st.integers(1, 9), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))

MMA = "flash_attn_ext_f16<64,64,8,8,false,false,false>"
ABOUT = {
    "case": "gqa",
    "source": "pypi:xllamacpp==2026.10.11549",
    "build_number": "11549",
    "patches": "",
    "engine": "sim",
    "flavour": "debug",
    "device": "sim:h200",
    "debugger": "GNU gdb (Debian 13.1-3) 13.1",
}
DECISIONS = (
    Decision(
        "ggml_cuda_get_best_fattn_kernel",
        "fattn.cu",
        401,
        "gqa_opt_applies",
        True,
        "",
        (Term("gqa_ratio", "7"), Term("max_bias", "0")),
    ),
    Decision(
        "ggml_cuda_flash_attn_ext_mma_f16_switch_ncols2",
        "fattn.cu",
        92,
        "use_gqa_opt && gqa_ratio > 4",
        True,
        "switch_ncols1<DKQ, DV, 8>",
        (Term("use_gqa_opt", "true"), Term("gqa_ratio", "7")),
    ),
)
TEMPLATE = {"DKQ": 64, "DV": 64, "ncols1": 8, "ncols2": 8, "use_logit_softcap": False, "V_is_K_view": False}
BATCHES = {"nbatch_fa": 64, "nbatch_K2": 32, "nbatch_V2": 32, "nbatch_combine": 32}
CONFIG = {"nthreads": 128, "occupancy": 2} | BATCHES | {"nstages": 2, "Q_in_reg": True}
MMA_CHOICE = Choice("mma_f16", MMA, TEMPLATE, CONFIG, DECISIONS)
REASONS = (
    "use_gqa_opt && gqa_ratio > 4 held (gqa_ratio = 7), so ncols2 = 8",
    "the vec kernel needed Q->ne[1] == 1; it is 7",
)


def contiguous(name: str, type_: str, ne: tuple[int, int, int, int], size: int) -> TensorFacts:
    nb = (size, size * ne[0], size * ne[0] * ne[1], size * ne[0] * ne[1] * ne[2])
    return TensorFacts(name, type_, ne, nb, name, "", 0, True)


def tensors(hsk: int, heads: tuple[int, int], queries: int, kv: int) -> tuple[TensorFacts, ...]:
    head, head_kv = heads
    return (
        contiguous("dst", "f32", (hsk, head, queries, 1), 4),
        contiguous("Q", "f32", (hsk, queries, head, 1), 4),
        contiguous("K", "f16", (hsk, kv, head_kv, 1), 2),
        replace(
            contiguous("V", "f16", (hsk, kv, head_kv, 1), 2), ggml_name="V (view)", view_src="KV", contiguous=False
        ),
        contiguous("mask", "f16", (kv, queries, 1, 1), 2),
    )


def stream_k(grid: Grid, number: int, limits: Limits | None = None) -> Facts:
    """Facts of an mma kernel of which only the division of work matters."""
    blocks = stream_k_blocks(grid, number, limits)
    seams = any(work.is_fixup for block in blocks for work in block.tiles)
    fixup = (KernelLaunch("flash_attn_stream_k_fixup_general", (number, 8, 8), (64, 1, 1), 0),) if seams else ()
    main = KernelLaunch(MMA, (number, 1, 1), (32, 4, 1), 18432, MEASURED)
    return Facts(ABOUT, choice=MMA_CHOICE, kernels=(main, *fixup), grid=grid, blocks=blocks)


def in_turn(grid: Grid, turns: int, limits: Limits | None = None) -> Facts:
    """Facts of a vec kernel of which only the division of work matters."""
    dims = (grid.iter_j, turns, grid.ne03 * grid.ne12 * grid.iter_z_gqa)
    combine = (KernelLaunch("flash_attn_combine_results", (1, 1, 1), (64, 1, 1), 0),) if turns > 1 else ()
    choice = Choice("vec", "flash_attn_ext_vec", {"D": 128, "ncols": 1}, {"nthreads": 128})
    main = KernelLaunch("flash_attn_ext_vec", dims, (32, 4, 1), 0)
    blocks = blocks_in_turn(dims, grid, limits)
    return Facts(ABOUT, choice=choice, kernels=(main, *combine), grid=grid, blocks=blocks)


def gqa() -> Facts:
    """7 queries, 14 heads on 2 K/V heads, 256 KV rows on an H200."""
    launch: dict[str, Any] = {"ntiles_x": 1, "ntiles_dst": 2, "ntiles_KV": 4, "ntiles_z_gqa": 1, "gqa_ratio": 7}
    launch |= {"iter_k": 4, "iter_j": 1, "blocks_num": [8, 1, 1], "block_dim": [32, 4, 1], "nbytes_shared": 18432}
    launch |= {"nsm": 132, "max_blocks_per_sm": 2, "max_blocks": 264, "parallel_blocks": 2}
    launch |= {"stream_k": True, "use_stream_k": True, "scan_mask": False, "fixup": "uniform"}
    params = {"op_params": [1040187392, 0, 0, 0, 0], "scale": 0.125, "max_bias": 0.0, "logit_softcap": 0.0}
    params |= {"prec": 0, "n_kv_max": 0}
    missing = (MissingFacts("blocks.sm", "the simulator has no SMs to ask"),)
    uniform = KernelLaunch("flash_attn_stream_k_fixup_uniform", (2, 8, 8), (64, 1, 1), 0)
    made = stream_k(Grid(4, 1, 1, 2, 1), 8)
    shapes = tensors(64, (14, 2), 7, 256)
    kernels = (made.kernels[0], uniform)
    return replace(made, tensors=shapes, op_params=params, launch=launch, kernels=kernels, missing=missing)


def fractional() -> Facts:
    """24 heads on 3 K/V heads, 512 queries, 4096 KV rows: 264 blocks, 192 tiles of 64 KV steps."""
    made = stream_k(Grid(64, 64, 1, 3, 1), 264)
    launch = {"ntiles_x": 64, "ntiles_dst": 192, "ntiles_KV": 64, "blocks_num": [264, 1, 1], "max_blocks": 264}
    return replace(made, tensors=tensors(128, (24, 3), 512, 4096), launch=launch)


def decode() -> Facts:
    """One query of 32 heads on 8 K/V heads, 4096 KV rows, by the vec kernel: 8 blocks take turns on each tile."""
    made = in_turn(Grid(32, 1, 4, 8, 1), 8)
    launch = {"ntiles_x": 1, "ntiles_dst": 32, "ntiles_KV": 32, "parallel_blocks": 8, "blocks_num": [1, 8, 32]}
    return replace(made, tensors=tensors(128, (32, 8), 1, 4096), launch=launch)


def causal() -> Facts:
    """1024 queries and KV rows under a causal mask that was scanned, 8 heads on 2: much is skipped."""
    return stream_k(Grid(16, 128, 1, 2, 1), 264, {(0, jt): min(16, 4 * (1 + jt * 8 // 256)) for jt in range(128)})


def with_work(facts: Facts, block: int, place: int, work: TileWork) -> Facts:
    """The same with one block's work on one tile replaced."""
    tiles = list(facts.blocks[block].tiles)
    tiles[place] = work
    return with_block(facts, replace(facts.blocks[block], tiles=tuple(tiles)))


def with_block(facts: Facts, block: BlockWork) -> Facts:
    """The same with one block replaced."""
    return replace(facts, blocks=tuple(block if other.block == block.block else other for other in facts.blocks))


@st.composite
def decompositions(draw):
    """Facts of any right division of work, stream-K or in turn, with or without a scanned mask."""
    grid = draw(grids)
    limits = {
        (sequence, jt): draw(st.integers(0, grid.iter_k)) for sequence in range(grid.ne03) for jt in range(grid.iter_j)
    }
    scanned = draw(st.sampled_from([None, limits]))
    if draw(st.booleans()):
        return stream_k(grid, draw(numbers), scanned)
    return in_turn(grid, draw(st.integers(1, grid.iter_k)), scanned)
