"""llama.cpp's stream-K: all KV steps of all output tiles in sequence, cut into equal shares, with a fixup at seams."""

# ruff: noqa: E741  (O and l are the papers' names)

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fattn_probe.base.documents import Document
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import MIB, read_text
from fattn_probe.cases.op import Sizes
from fattn_probe.daily.inspect.facts import Facts
from fattn_probe.lab.study.papers import attend
from fattn_probe.lab.study.problem import (
    Index,
    OpArrays,
    SlowMemory,
    StudyResult,
    Trace,
    exp_below,
    log_sum_exp,
    rows_divided,
    tiles,
)
from fattn_probe.llama.launch.geometry import grid_of
from fattn_probe.llama.launch.tiles import BlockWork, Grid, Tile, TileWork, in_grid, ntiles, stream_k_blocks


@dataclass(frozen=True)
class StudyLaunch:
    """The division of work of a launch: `blocks` with their tiles of `ncols1` queries x `ncols2` heads."""

    grid: Grid
    ncols1: int
    ncols2: int
    nbatch_fa: int
    blocks: tuple[BlockWork, ...]


@dataclass(frozen=True)
class StudyPiece:
    """The part of an output tile that one CUDA block computes: heads, queries and KV rows of the tensors."""

    block: int
    work: TileWork
    heads: slice
    queries: slice
    kv: slice


def launch_of(facts: Facts) -> StudyLaunch:
    """The division of work of an inspected launch; InputError if its kernel does not use stream-K."""
    choice = facts.choice
    if facts.grid is None or choice is None or not facts.blocks or any(block.kbc is None for block in facts.blocks):
        kernel = choice.kernel if choice else "no kernel"
        raise InputError(f"{kernel} has no stream-K shares (kbc, kbc_stop); only flash_attn_ext_f16 has them")
    sizes = (int(choice.template["ncols1"]), int(choice.template["ncols2"]), int(choice.config["nbatch_fa"]))
    return StudyLaunch(facts.grid, *sizes, facts.blocks)


def divide(shape: Sizes, ncols1: int, nbatch_fa: int, most_blocks: int) -> StudyLaunch:
    """A launch by the kernel's arithmetic: block b does `range(b * steps / blocks, (b + 1) * steps / blocks)`.

    There are at most as many blocks as KV steps.
    """
    ncols2 = heads_of_tile(shape.group)
    grid = grid_of(shape, ncols1, ncols2, nbatch_fa)
    blocks = stream_k_blocks(grid, min(most_blocks, ntiles(grid) * grid.iter_k))
    return StudyLaunch(grid, ncols1, ncols2, nbatch_fa, blocks)


def heads_of_tile(group: int) -> int:
    """`ncols2` as upstream chooses it with GQA: 8 for more than 4 heads per K/V head, else 4, 2 or 1."""
    return min(8, 1 << (group - 1).bit_length())


def pieces_of(launch: StudyLaunch, shape: Sizes) -> tuple[StudyPiece, ...]:
    """The parts of all blocks, block by block, without the padding beyond the tensors."""
    found = []
    for number, work in ((block.block, work) for block in launch.blocks for work in block.tiles):
        if in_grid(work.tile, launch.grid):
            first = work.z_KV * shape.group + work.zt_gqa * launch.ncols2
            heads = slice(first, min(first + launch.ncols2, (work.z_KV + 1) * shape.group))
            queries = slice(work.jt * launch.ncols1, min((work.jt + 1) * launch.ncols1, shape.n_q))
            start = work.kb0_start * launch.nbatch_fa
            stop = max(start, min(work.kb0_stop * launch.nbatch_fa, shape.n_kv))
            found.append(StudyPiece(number, work, heads, queries, slice(start, stop)))
    return tuple(found)


def stream_k(op: OpArrays, launch: StudyLaunch, wanted: Callable[[Tile], bool] | None = None) -> StudyResult:
    """`flash_attn_ext_f16` and `flash_attn_stream_k_fixup_*` (ggml/src/ggml-cuda/fattn-mma-f16.cuh, fattn-common.cuh).

    The idea is Osama et al., "Stream-K", 2023, arXiv 2301.03598. `wanted` selects output tiles. The result
    has all heads: out (n_seq, n_head, n_q, hsv), lse (n_seq, n_head, n_q), with NaN in the other tiles. llama.cpp does
    not save L; it is computed here and not counted.
    """
    pieces = [piece for piece in pieces_of(launch, op.shape) if wanted is None or wanted(piece.work.tile)]
    hbm = _slow_memory(op, launch)
    trace = Trace(hbm)
    for piece in pieces:  # in parallel on a GPU
        process_tile(op, launch, piece, hbm, trace)
    for piece in pieces:
        if piece.work.needs_fixup:
            before = [one for one in pieces if one.work.is_fixup and one.work.tile == piece.work.tile]
            fixup(piece, before, hbm, trace)
    return trace.result()


def process_tile(op: OpArrays, launch: StudyLaunch, piece: StudyPiece, hbm: SlowMemory, trace: Trace) -> None:
    """`flash_attn_ext_f16_process_tile`: FlashAttention-2 over a block's share of a tile, then the store.

    The block that reaches the end of a tile adds the sink and writes `dst`. If it also began the tile, it divides O by
    l; if not (`needs_fixup`), it stores O undivided, with m and l. A block that does not reach the end (`is_fixup`)
    stores O, m and l in its part of `dst_fixup`.
    """
    rule, work, here = op.rule(piece.heads), piece.work, hbm.at(**_places(op, piece))
    trace.heads = piece.heads
    Q_i = here.load("Q", piece.queries)
    state = rule.start(Q_i, op.shape.hsv, with_sink=False)
    steps = tiles(piece.kv.stop, launch.nbatch_fa, piece.kv.start)
    O, l, m = attend(rule, here, trace, Q_i, state, i=piece.queries, kv_tiles=steps, worker=piece.block)
    part = (piece.block, slice(0, m.shape[0]), slice(0, m.shape[1]))
    if work.is_fixup:
        hbm.store("dst_fixup", O, *part)
        hbm.store("dst_fixup_meta", np.stack([m, l], axis=-1), IS_FIXUP, *part)
        trace.step("store part", piece.queries, piece.kv, worker=piece.block)
        return
    m_new = np.maximum(m, rule.sink)
    old, new = exp_below(m, m_new), exp_below(np.broadcast_to(rule.sink, m.shape), m_new)
    O, l, m = old[..., None] * O, old * l + new, m_new
    here.store("O", O if work.needs_fixup else rows_divided(O, l), piece.queries)
    if work.needs_fixup:
        hbm.store("dst_fixup_meta", np.stack([m, l], axis=-1), NEEDS_FIXUP, *part)
    hbm.array("L")[work.sequence, piece.heads, piece.queries] = log_sum_exp(m, l)
    trace.step("store O, m, l" if work.needs_fixup else "store O", piece.queries, piece.kv, worker=piece.block)


def fixup(piece: StudyPiece, before: Sequence[StudyPiece], hbm: SlowMemory, trace: Trace) -> None:
    """`flash_attn_stream_k_fixup_*`: add the parts of earlier blocks to `dst`, last one first, and divide."""
    place = (piece.work.sequence, piece.heads, piece.queries)
    trace.heads = piece.heads
    rows = (slice(0, piece.heads.stop - piece.heads.start), slice(0, piece.queries.stop - piece.queries.start))
    O = hbm.load("O", *place)
    m, l = np.moveaxis(hbm.load("dst_fixup_meta", NEEDS_FIXUP, piece.block, *rows), -1, 0)
    for part in reversed(before):
        O_p = hbm.load("dst_fixup", part.block, *rows)
        m_p, l_p = np.moveaxis(hbm.load("dst_fixup_meta", IS_FIXUP, part.block, *rows), -1, 0)
        m_old, m = m, np.maximum(m, m_p)
        old, new = exp_below(m_old, m), exp_below(m_p, m)
        O = old[..., None] * O + new[..., None] * O_p
        l = old * l + new * l_p
        visible = bool(np.isfinite(m_p).any())
        trace.step("combine", piece.queries, part.kv, (m_old, m, l), worker=part.block, visible=visible)
    hbm.store("O", rows_divided(O, l), *place)
    hbm.array("L")[place] = log_sum_exp(m, l)
    trace.step("store O", piece.queries, piece.kv, worker=piece.block)


NEEDS_FIXUP, IS_FIXUP = 0, 1  # the two halves of dst_fixup_meta


def _slow_memory(op: OpArrays, launch: StudyLaunch) -> SlowMemory:
    """The tensors, with one mask plane per head if there are several, and `dst_fixup` with its metadata."""
    shape = op.shape
    arrays = {"Q": op.Q, "K": op.K, "V": op.V}
    if op.mask is not None:
        planes = op.mask.shape[1]
        arrays["mask"] = op.mask if planes == 1 else op.mask[:, np.arange(shape.n_head) % planes]
    hbm = SlowMemory(**arrays)
    hbm.allocate("O", shape.n_seq, shape.n_head, shape.n_q, shape.hsv)
    hbm.allocate("L", shape.n_seq, shape.n_head, shape.n_q)
    parts = (len(launch.blocks), launch.ncols2, launch.ncols1)
    hbm.allocate("dst_fixup", *parts, shape.hsv)
    hbm.allocate("dst_fixup_meta", 2, *parts, 2)
    return hbm


def _places(op: OpArrays, piece: StudyPiece) -> dict[str, tuple[Index, ...]]:
    """The index of a piece's rows in each tensor."""
    sequence, kv_head = piece.work.sequence, piece.work.z_KV
    places: dict[str, tuple[Index, ...]] = {name: (sequence, kv_head) for name in "KV"}
    places |= {name: (sequence, piece.heads) for name in "QO"}
    if op.mask is not None:
        one = op.mask.shape[1] == 1
        places["mask"] = (sequence % op.mask.shape[0], slice(0, 1) if one else piece.heads)
    return places


MOST_JSON = 256 * MIB
"""Limit for the output of `inspect --json`, in bytes."""
FACTS = Document("the facts of an inspection", Facts)


def read_launch(path: Path, case: str, shape: Sizes) -> StudyLaunch:
    """The launch of a case in a file of `inspect --json`; InputError if it is missing or belongs to a different op."""
    text = read_text(path, "the inspection", most=MOST_JSON)
    try:
        found = {one["case"]: one["facts"] for one in json.loads(text)["inspections"] if one["facts"]}
        facts = FACTS.of({**found[case], "kernels": ()}) if case in found else None  # whose origins are words there
    except (InputError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is not an output of `fattn-probe inspect --json`: {error!r}") from error
    if facts is None:
        raise InputError(f"{path} has no facts of case {case}; it has {', '.join(found) or 'none'}")
    launch = launch_of(facts)
    if facts.choice and facts.choice.template.get("use_sparse"):
        raise InputError(f"{path}: the kernel of {case} gathers its KV rows (n_kv_max), which study does not support")
    expected = grid_of(shape, launch.ncols1, launch.ncols2, launch.nbatch_fa)
    if launch.grid != expected:
        raise InputError(f"{path}: {launch.grid} does not fit {case}, which has {expected}; inspect this case again")
    return launch
