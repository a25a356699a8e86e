"""Reading an op in a debugger, up to the attention kernel's launch and through its blocks.

The same procedure runs inside gdb's Python and over MI: it knows `Debugger` alone, and imports the standard library and
this package only. What it returns is JSON: values as gdb prints them, integers where they are counted with.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fattn_probe.debug.protocol import Debugger, Stop
from fattn_probe.inspect.procedures.dispatch import LAUNCHER, trace_dispatch

ROLES = {"dst": "dst", "Q": "dst->src[0]", "K": "dst->src[1]", "V": "dst->src[2]", "mask": "dst->src[3]"}
ROLES |= {"sinks": "dst->src[4]"}
TENSOR = ("type", "ne", "nb", "name", "view_src", "view_offs", "data")
LAUNCH = (
    *("ntiles_x", "ntiles_dst", "ntiles_total", "ntiles_KV", "gqa_ratio", "ntiles_z_gqa", "n_kv", "n_kv_max"),
    *("block_dim", "blocks_num", "max_blocks_per_sm", "nsm", "cc", "nbytes_shared", "nbatch_fa", "nwarps", "warp_size"),
    *("stream_k", "parallel_blocks", "use_sparse", "scan_mask", "need_f16_K", "need_f16_V", "V_is_K_view"),
    *("scale", "max_bias", "logit_softcap", "m0", "m1", "n_head_log2"),
)
STREAM_K = ("max_blocks", "use_stream_k", "tiles_nwaves", "tiles_efficiency_percent", "nblocks_stream_k", "ntiles_KQ")
SPLIT_KV = ("blocks_per_wave", "nwaves_best", "efficiency_percent_best", "ntiles_KQ")
CONFIG = (
    *("nthreads", "nbatch_fa", "nbatch_K2", "nbatch_V2", "nbatch_combine", "nbatch_K", "Q_in_reg", "nstages"),
    *("cols_per_warp", "cols_per_block", "nwarps", "ntiles"),
)
KERNEL_VARIABLES = ("iter_k", "iter_j", "iter_z_gqa", "ne12", "ne02", "ne03", "ne13", "gqa_ratio", "nbatch_fa")
TILE_VARIABLES = ("sequence", "z_KV", "zt_gqa", "zt", "jt", "kb0_start", "kb0_stop", "needs_fixup", "is_fixup")
# Of the mask's scan and of the sparse gather; cannot be read (null pointer) if neither was made
KV_LIMIT = "KV_max[sequence*iter_j + jt] / nbatch_fa"
SPARSE_LIMIT = "(KV_max[(sequence % ne33)*iter_j + jt] + nbatch_fa - 1) / nbatch_fa"
SPLIT_VARIABLES = (
    "sequence",
    "head",
    "head0",
    "zt_gqa",
    "ic0",
    "col_Q_0",
    "k_VKQ_max",
    "nthreads",
    "nbatch_fa",
    "ne11",
)
FRAMES = 12

Document = dict[str, Any]
Points = dict[int, str]


def read_op(debugger: Debugger, plan: Document) -> Document:
    """Run the program to the attention kernel's launch and read the host's facts; then, if asked, every block's.

    `plan`: `anchors` (gdb locations by name), `dispatch` (what `trace_dispatch` takes), `blocks` (whether to read
    them), `simulated`. A program that ends before the launch leaves `ended`.
    """
    found: Document = {}
    points: Points = {}
    found["visits"], stop = trace_dispatch(debugger, plan["dispatch"])
    if stop.function.startswith(LAUNCHER):
        points = insert_near(debugger, plan["anchors"], ("launch", "stream_k", "split_kv"))
        stop = debugger.resume("continue")
    while (where := point_of(points, stop)) in ("stream_k", "split_kv"):
        found["scoped"] = texts(debugger, STREAM_K if where == "stream_k" else SPLIT_KV)
        stop = debugger.resume("continue")
    if where != "launch":
        return found | {"ended": [stop.reason, stop.detail, stop.function]}
    debugger.delete(*points)
    found |= read_host(debugger)
    if plan["blocks"]:
        sparse = found["launch"].get("use_sparse") == "true"
        found["blocks"] = list(read_blocks(debugger, plan["anchors"], sparse))
    if plan["simulated"]:  # what is left is launched for the record only
        debugger.execute("set var simt::focus.skip = 1")
    debugger.resume("finish")
    debugger.execute("kill")
    return found


def to_launch(debugger: Debugger, plan: Document) -> Stop:
    """Run the program into the function that launches the attention kernel; elsewhere if it never gets there.

    `plan`: `dispatch`, what `trace_dispatch` takes.
    """
    _, stop = trace_dispatch(debugger, plan["dispatch"])
    return stop


def insert_near(debugger: Debugger, anchors: Mapping[str, Sequence[str]], names: Iterable[str]) -> Points:
    """Breakpoints on all lines of some anchors, near the frames above; anchor by breakpoint number."""
    found = ((name, location) for name in names for location in anchors[name])
    return {number: name for name, location in found for number in debugger.insert_near(location)}


def point_of(points: Points, stop: Stop) -> str:
    """The anchor at which the program stopped, empty if at none."""
    return next((points[number] for number in stop.breakpoints if number in points), "")


def texts(debugger: Debugger, names: Sequence[str], level: int = 0) -> dict[str, str]:
    """Those of the variables that a frame has, as gdb prints them."""
    known = debugger.local_names(level)
    names = [name for name in names if name in known]
    values = debugger.evaluate(names, level)
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def read_host(debugger: Debugger) -> Document:
    """What launch_fattn and its callers know, the program standing at the launch."""
    functions = [frame.function for frame in debugger.frames(FRAMES)]
    return {
        "tensors": {role: tensor for role, at in ROLES.items() if (tensor := read_tensor(debugger, at))},
        "op_params": debugger.evaluate(["dst->op_params"])[0],
        "launch": texts(debugger, LAUNCH),
        "kernel": debugger.evaluate(["fattn_kernel"])[0],
        "config": read_config(debugger, functions),
    }


def read_tensor(debugger: Debugger, at: str) -> dict[str, str]:
    """The fields of the ggml_tensor that the expression points at; nothing for a null pointer."""
    (pointer,) = debugger.evaluate([f"(long){at}"])
    if pointer in (None, "0"):
        return {}
    values = debugger.evaluate([f"({at})->{field}" for field in TENSOR] + [f"({at})->view_src->name"])
    return {field: value for field, value in zip((*TENSOR, "view_name"), values, strict=True) if value is not None}


def read_config(debugger: Debugger, functions: Sequence[str]) -> dict[str, str]:
    """The configuration of the kernel: the locals of the frame that called launch_fattn."""
    caller = next((level for level, name in enumerate(functions) if not name.startswith(LAUNCHER)), 1)
    return texts(debugger, CONFIG, caller)


def read_blocks(debugger: Debugger, anchors: Mapping[str, Sequence[str]], sparse: bool) -> Iterator[Document]:
    """The work of each block of the kernel about to be launched, said by thread 0 of the block itself.

    Blocks run one after another. Each tile's call is left as soon as its arguments are read: nothing is computed.
    """
    points = insert_near(debugger, anchors, ("kbc", "tile_call", "vec_block", "tile_block", "launched"))
    debugger.execute("set var simt::focus.scout = 1")
    reader = BlockReader(debugger)
    limit = SPARSE_LIMIT if sparse else KV_LIMIT
    while (where := point_of(points, stop := debugger.resume("continue"))) not in ("", "launched"):
        if where == "kbc":
            yield reader.read(where, ("kbc", "kbc_stop", *KERNEL_VARIABLES))
            continue
        if where == "tile_call":
            points[enter(debugger, stop, points)] = "tile"
        if where in ("tile_call", "tile"):
            yield reader.read("tile", (*TILE_VARIABLES, limit), level=1)
        else:
            yield reader.read(where, SPLIT_VARIABLES)
        debugger.execute("return")
    debugger.delete(*points)
    if where != "launched":
        yield {"at": "ended", "reason": stop.reason, "detail": stop.detail}
        return
    debugger.execute("set var simt::focus.scout = 0")


def enter(debugger: Debugger, stop: Stop, points: Points) -> int:
    """Go from a line that calls a function into it, and stop there from now on instead of at the line."""
    debugger.delete(*stop.breakpoints)
    for number in stop.breakpoints:
        points.pop(number)
    debugger.resume("step")
    return debugger.insert(f"*{debugger.evaluate(['(long)$pc'])[0]}")


class BlockReader:
    """Reads integers at stops in a kernel; what a kind of stop does not have is asked for once."""

    def __init__(self, debugger: Debugger) -> None:
        self.debugger = debugger
        self.address = int(debugger.evaluate(["(long)&simt::blockIdx"])[0] or 0)
        self.known: dict[str, tuple[str, ...]] = {}

    def read(self, where: str, names: Sequence[str], level: int = 0) -> Document:
        """The integers among the variables, with the block they are of."""
        names = self.known.get(where, tuple(names))
        values = [number(text) for text in self.debugger.evaluate(names, level)]
        found: Document = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        self.known.setdefault(where, tuple(found))
        block = struct.unpack("<3I", self.debugger.memory(self.address, 12))
        return found | {"at": where, "blockIdx": list(block)}


def number(text: str | None) -> int | None:
    """An integer or bool as gdb prints it; None of anything else."""
    if text in ("true", "false"):
        return int(text == "true")
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None
