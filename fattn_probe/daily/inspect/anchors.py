"""Anchors: where an inspection stops, as patterns in the built source, since line numbers vary by release."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fattn_probe.daily.inspect.facts import MissingFacts
from fattn_probe.daily.inspect.procedures.blocks import BLOCK
from fattn_probe.llama.build.rewrite_checker import without_conversions
from fattn_probe.llama.launch.families import FAMILIES, MMA_F16, TILE, VEC
from fattn_probe.llama.source.features import CUDA

COMMON, MMA = "fattn-common.cuh", MMA_F16.file
COMMENT = re.compile(r"\s*(//.*|[{}]\s*)?$")


@dataclass(frozen=True)
class Anchor:
    """A line that matches `pattern` in `file` of ggml-cuda/.

    `every`: all matching lines, not only the first. `after`: the search starts after another anchor's line.
    `skip_comment`: the first line of code at or after the match. `facts` names the facts lost without a match.
    """

    name: str
    file: str
    pattern: str
    facts: str
    every: bool = False
    after: str = ""
    skip_comment: bool = False


LAUNCH = "launch"
STREAM_K = "stream_k"
ANCHORS = (
    # `fattn_kernel<<<...>>>(` until 2026-05, then a function; the third form is the first, rewritten for the simulator
    Anchor(LAUNCH, COMMON, r"^\s*(fattn_kernel<<<|\w+\(fattn_kernel,|simt::.*\bfattn_kernel\()", "everything"),
    Anchor("launched", COMMON, r"^\s*CUDA_CHECK\(cudaGetLastError\(\)\);", "blocks", after=LAUNCH),
    Anchor("finished", COMMON, r"^\s*CUDA_CHECK\(cudaGetLastError\(\)\);", "the combined output", after="launched"),
    # The first line after max_blocks and use_stream_k are assigned; at the launch, these are out of scope
    Anchor(STREAM_K, COMMON, r"^\s*blocks_num\.x = (?!ntiles_x;)", "max_blocks, use_stream_k"),
    Anchor("split_kv", COMMON, r"^\s*blocks_num\.x = ntiles_x;", "blocks_per_wave, efficiency_percent_best"),
    Anchor("kbc", MMA, r"^\s*int kb0_stop\s*= min\(iter_k, kb0_start", "kbc and kbc_stop"),
    Anchor("tile_call", MMA, r"^\s*\w+_process_tile<", "tiles of the blocks", every=True),
    *(
        Anchor(f"{each.name}{BLOCK}", each.file, each.block_line, f"blocks of {each.name} kernels", every=True)
        for each in reversed(FAMILIES)  # the order of the recorded dialogues with cuda-gdb
        if each.block_line
    ),
    Anchor("logits", MMA, r"^\s*float KQ_max_new\[", "KQ before the mask"),
    Anchor(
        "softmax",  # the second form has sums in float32, as on CDNA
        MMA,
        r"^\s*((const )?half2 KQ_max_scale_h2 = make_half2\(|VKQ_C\[i\]\.x\[l\] \*= KQ_max_scale\[0\];)",
        "P and the rescale factor",
        every=True,
    ),
    Anchor("rescaled", MMA, r"^\s*T_B_VKQ B\[", "VKQ after the rescale"),
    Anchor("accumulated", MMA, r"// Finally, sum up partial KQ rowsums", "the last step's VKQ", skip_comment=True),
    Anchor("sunk", MMA, r"// Combine VKQ accumulator values if np > 1", "VKQ after the sinks", skip_comment=True),
    Anchor("tile_logits", TILE.file, r"// Calculate KQ softmax, write to", "KQ of tile", skip_comment=True),
    Anchor("tile_weights", TILE.file, r"// VKQ = V @ KQ matrix multiplication", "row sums of tile", skip_comment=True),
    Anchor("tile_last", TILE.file, r"^\s*KQ_sum\[jc0\] = warp_reduce_sum", "the last VKQ of tile"),
    Anchor("tile_sunk", TILE.file, r"// Write back results:", "VKQ of tile after the sinks", skip_comment=True),
    Anchor("vec_logits", VEC.file, r"^\s*const float KQ_max_scale = ", "KQ of vec"),
    Anchor("vec_weights", VEC.file, r"^\s*for \(int k0 = 0; k0 < WARP_SIZE; k0 \+= V_cols_per_iter", "P of vec"),
    Anchor("vec_last", VEC.file, r"^\s*if \(sinks\b", "the last VKQ of vec"),
    Anchor("vec_sunk", VEC.file, r"^\s*(__shared__ )?float (\(&)?KQ_max_shared\b", "VKQ of vec after the sinks"),
)


@dataclass(frozen=True)
class Located:
    """The anchors of one tree: gdb locations (`fattn-common.cuh:1251`) by anchor, and the facts that are missing."""

    locations: Mapping[str, tuple[str, ...]]
    missing: tuple[MissingFacts, ...]


@cache
def locate(folder: Path, anchors: tuple[Anchor, ...] = ANCHORS) -> Located:
    """Find the anchors in ggml-cuda/ at `folder`; the result reports those without a match."""
    lines: dict[str, tuple[int, ...]] = {}
    for anchor in anchors:
        text, found = overlay_lines(folder / anchor.file), list[int]()
        for number in matching(text, anchor.pattern, max(lines.get(anchor.after, (0,)), default=0)):
            at = number
            while anchor.skip_comment and at < len(text) and COMMENT.match(text[at - 1]):
                at += 1
            found.append(at)
        lines[anchor.name] = tuple(found if anchor.every else found[:1])
    return Located(
        {anchor.name: tuple(f"{anchor.file}:{line}" for line in lines[anchor.name]) for anchor in anchors},
        tuple(
            MissingFacts(anchor.facts, f"no line of {CUDA / anchor.file} matches {anchor.pattern}")
            for anchor in anchors
            if not lines[anchor.name]
        ),
    )


def overlay_lines(path: Path) -> list[str]:
    """An overlay file's lines without the checker's marks, for matching; empty if the file is missing."""
    return without_conversions(path.read_text(errors="replace")).splitlines() if path.is_file() else []


def matching(lines: list[str], pattern: str, start: int = 0) -> Iterator[int]:
    """1-based numbers of the lines that match, after line `start`."""
    return (number for number, line in enumerate(lines[start:], start + 1) if re.search(pattern, line))
