"""Read an op in a debugger, up to the attention kernel's launch and through its blocks.

The same procedure runs inside gdb's Python and over MI: it uses only the `Debugger` protocol, and imports only the
standard library and this package. It returns JSON: values as gdb prints them, or integers where arithmetic follows.
"""

import re
from collections.abc import Sequence
from typing import Any

from fattn_probe.daily.inspect.procedures import blocks, gpu
from fattn_probe.daily.inspect.procedures.dispatch import LAUNCHER, trace_dispatch
from fattn_probe.daily.inspect.procedures.points import Points, insert_near, point_of
from fattn_probe.machine.debug.protocol import Debugger

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
FRAMES = 12
INTEGER = re.compile(r"\d+")

Document = dict[str, Any]


def read_op(debugger: Debugger, plan: Document) -> Document:
    """Run the program to the attention kernel's launch, and read the host's facts and, if requested, those of blocks.

    `plan`: `anchors` (gdb locations by name), `dispatch` (the plan of `trace_dispatch`), `blocks` (whether to read
    them), `simulated`. If the program ends before the launch, the result has `ended`.
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
        launch, anchors = found["launch"], plan["anchors"]
        sparse, extents = launch.get("use_sparse") == "true", [*map(int, INTEGER.findall(launch["blocks_num"]))]
        read = (
            blocks.read_blocks(debugger, anchors, sparse=sparse)
            if plan["simulated"]
            else gpu.read_blocks(debugger, anchors, extents, sparse=sparse)
        )
        found["blocks"] = list(read)
        if found["blocks"] and found["blocks"][-1]["at"] == "ended":
            return found
    if plan["simulated"]:  # launch the remaining kernels without running them, only to record them
        debugger.execute("set var simt::focus.skip = 1")
    debugger.resume("finish")
    debugger.execute("kill")
    return found


def texts(debugger: Debugger, names: Sequence[str], level: int = 0) -> dict[str, str]:
    """The values of those variables that exist in a frame, as gdb prints them."""
    known = debugger.local_names(level)
    names = [name for name in names if name in known]
    values = debugger.evaluate(names, level)
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def read_host(debugger: Debugger) -> Document:
    """The host's facts from launch_fattn and its callers; the program has stopped at the launch."""
    frames = enumerate(debugger.frames(FRAMES))
    caller = next((level for level, frame in frames if not frame.function.startswith(LAUNCHER)), 1)
    return {
        "tensors": {role: tensor for role, at in ROLES.items() if (tensor := read_tensor(debugger, at))},
        "op_params": debugger.evaluate(["dst->op_params"])[0],
        "launch": texts(debugger, LAUNCH),
        "kernel": debugger.evaluate(["fattn_kernel"])[0],
        "config": texts(debugger, CONFIG, caller),  # the locals of the frame that called launch_fattn
    }


def read_tensor(debugger: Debugger, at: str) -> dict[str, str]:
    """The fields of the ggml_tensor that the expression points to; empty for a null pointer."""
    (pointer,) = debugger.evaluate([f"(long){at}"])
    if pointer in (None, "0"):
        return {}
    values = debugger.evaluate([f"({at})->{field}" for field in TENSOR] + [f"({at})->view_src->name"])
    return {field: value for field, value in zip((*TENSOR, "view_name"), values, strict=True) if value is not None}
