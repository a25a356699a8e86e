"""Read an op in a debugger: the dispatch, the attention kernel's launch, its blocks, whole tensors, breakpoints.

The same procedure runs inside gdb's Python and over MI: it uses only the `Debugger` protocol, and imports only the
standard library and this package. It returns JSON: values as gdb prints them, or integers where arithmetic follows.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from fattn_probe.daily.inspect.procedures import blocks
from fattn_probe.daily.inspect.procedures.blocks import Points, insert_near, point_of
from fattn_probe.machine.debug.protocol import Debugger, DebuggerError, StopRecord
from fattn_probe.machine.debug.values import numbers

Document = dict[str, Any]
STEPS = 3000
LAUNCHER = "launch_fattn<"


def trace_dispatch(debugger: Debugger, plan: Mapping[str, Any]) -> tuple[list[Document], StopRecord]:
    """Run the program, and step from the dispatch's entry into the launching function; returns (visits, last stop).

    Visits before the entry do not count: a backend also chooses a kernel earlier, to check for support. A visit is
    {function, file, line, values, after}, with the values of the plan's expressions before and after the line. The list
    is empty if the program never reached the entry.
    """
    entry = _insert(debugger, [plan["entry"]])
    stop = debugger.resume(plan["start"])
    debugger.delete(*entry)
    if not set(entry).intersection(stop.breakpoints):
        return [], stop
    points = _insert(debugger, plan["stops"])
    walk = _Walk(debugger, plan)
    try:
        stop = debugger.walk(stop, walk.advance)  # outside the dispatch: continue to its next function, or to the end
    finally:
        debugger.delete(*points)
    return walk.visits, stop


def _insert(debugger: Debugger, locations: Sequence[str]) -> list[int]:
    numbers = []
    for location in filter(None, locations):
        try:
            numbers.append(debugger.insert(location))
        except DebuggerError:  # the file was not compiled, so it is never reached
            continue
    return numbers


class _Walk:
    """One walk through the dispatch."""

    def __init__(self, debugger: Debugger, plan: Mapping[str, Any]) -> None:
        self.debugger, self.plan = debugger, plan
        self.visits: list[Document] = []
        self.command, self.left = "", STEPS
        self.waiting: tuple[Document, Sequence[int], str] | None = None

    def advance(self, stop: StopRecord) -> str:
        """The next command at a stop; `finish` leaves a function outside the dispatch that a step has entered."""
        if self.left < 0 or stop.reason in ("exited", "signal") or stop.function.startswith(LAUNCHER):
            return ""
        self.left -= 1
        if self.left < 0:
            return "continue"
        function = self.visit(stop)
        if function is None:
            self.command = "finish" if self.command == "step" else "continue"
        else:
            self.command = "step" if stop.line in function["calls"] else "next"
        return self.command

    def visit(self, stop: StopRecord) -> Mapping[str, Any] | None:
        """Record a stop; returns the function of the dispatch that it is in, or None."""
        file = PurePosixPath(stop.file).name
        function = self.function(file, stop.line)
        if function is None:
            return None
        entered = not self.visits or self.visits[-1]["function"] != stop.function
        here: Document = {"function": stop.function, "file": file, "line": stop.line, "values": {}, "after": {}}
        self.look_back(here)
        place = f"{file}:{stop.line}"
        asks = [*self.plan["asks"].get(place, ()), *(function["constants"] if entered else ())]
        here["values"] = self.values(asks)
        self.visits.append(here)
        if place in self.plan["after"] and self.waiting is None:  # a multi-line statement's first line is visited again
            self.waiting = here, *self.plan["after"][place]
        return function

    def function(self, file: str, line: int) -> Mapping[str, Any] | None:
        """The function of the dispatch that contains a line; None outside the dispatch."""
        here = (item for item in self.plan["functions"] if item["file"] == file)
        return next((item for item in here if item["lines"][0] <= line <= item["lines"][1]), None)

    def look_back(self, here: Document) -> None:
        """Record the value that a statement assigned to its variable, once the program has passed the statement."""
        if self.waiting is None:
            return
        visit, (first, last), name = self.waiting
        if here["function"] != visit["function"]:
            self.waiting = None
        elif not first <= here["line"] <= last:
            visit["after"] = self.values([name])
            self.waiting = None

    def values(self, asks: Sequence[str]) -> dict[str, str | None]:
        """Evaluate expressions; returns their values by expression."""
        return dict(zip(asks, self.debugger.evaluate(asks), strict=True)) if asks else {}


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
STREAM_K_CASE = "mma_f16_case"
"""Part of the name of the host function that launches stream-K kernels."""


def read_op(debugger: Debugger, plan: Document) -> Document:
    """Run the program up to the attention kernel's launch; read the host's facts, and the blocks' facts if requested.

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
    frames = [frame.function for frame in debugger.frames(FRAMES)]
    caller = next((level for level, function in enumerate(frames) if not function.startswith(LAUNCHER)), 1)
    found |= {
        "tensors": {role: tensor for role, at in ROLES.items() if (tensor := read_tensor(debugger, at))},
        "op_params": debugger.evaluate(["dst->op_params"])[0],
        "launch": texts(debugger, LAUNCH),
        "kernel": debugger.evaluate(["fattn_kernel"])[0],
        "config": texts(debugger, CONFIG, caller),  # the locals of the frame that called launch_fattn
    }
    anchors = plan["anchors"]
    # Without these lines, a stream-K kernel would not stop, and in one lane it cannot run to its end.
    lacks_lines = STREAM_K_CASE in frames[caller] and not all(anchors[name] for name in ("kbc", "tile_call"))
    if plan["blocks"] and not lacks_lines:
        launch = found["launch"]
        sparse, extents = launch.get("use_sparse") == "true", [*map(int, numbers(launch["blocks_num"]))]
        read = (
            blocks.read_blocks(debugger, anchors, sparse=sparse)
            if plan["simulated"]
            else blocks.read_gpu_blocks(debugger, anchors, extents, sparse=sparse)
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
    """The values of the variables that exist in a frame, as gdb prints them."""
    known = debugger.local_names(level)
    names = [name for name in names if name in known]
    values = debugger.evaluate(names, level)
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def read_tensor(debugger: Debugger, at: str) -> dict[str, str]:
    """The fields of the ggml_tensor that the expression `at` points to; empty for a null pointer."""
    (pointer,) = debugger.evaluate([f"(long){at}"])
    if pointer in (None, "0"):
        return {}
    values = debugger.evaluate([f"({at})->{field}" for field in TENSOR] + [f"({at})->view_src->name"])
    return {field: value for field, value in zip((*TENSOR, "view_name"), values, strict=True) if value is not None}


def read_tensors(debugger: Debugger, plan: Document) -> Document:
    """Run the op to completion, and write all bytes of each tensor to a file in `folder`.

    `plan`: `dispatch` (the plan of `trace_dispatch`), `sizes` (bytes by role), `folder`, `simulated`. The memory of a
    simulated GPU belongs to the program; for a real GPU, the debugger copies memory by calling
    `ggml_backend_tensor_get`. Returns `sizes` or `ended`.
    """
    _, stop = trace_dispatch(debugger, plan["dispatch"])
    if not stop.function.startswith(LAUNCHER):
        return {"ended": [stop.reason, stop.detail, stop.function]}
    stop = debugger.resume("finish")  # also runs the kernels before and after the attention kernel
    if stop.reason != "step":
        return {"ended": [stop.reason, stop.detail, stop.function]}
    for role, size in plan["sizes"].items():
        tensor = ROLES[role]
        if plan["simulated"]:
            found = debugger.memory(_integer(debugger, f"(long)({tensor})->data"), size)
        else:
            buffer = _integer(debugger, f"(long)((void *(*)(unsigned long))malloc)({size})")
            debugger.execute(f"call (void)ggml_backend_tensor_get({tensor}, (void *){buffer}, 0, {size})")
            found = debugger.memory(buffer, size)
            debugger.execute(f"call ((void (*)(void *))free)((void *){buffer})")
        (Path(plan["folder"]) / role).write_bytes(found)
    debugger.execute("kill")
    return {"sizes": plan["sizes"]}


def _integer(debugger: Debugger, expression: str) -> int:
    (text,) = debugger.evaluate([expression])
    if text is None:
        raise DebuggerError(f"{expression}: {debugger.refusal(expression)}")
    return int(text)


UNKNOWN = re.compile(r'No symbol "([^"]+)" in')
NEAR = 6  # the largest number of names suggested for an unknown one


def watch(debugger: Debugger, plan: Document) -> Document:
    """Run the program, and read `expressions` at each stop at one of `locations`, at most `stops` times.

    In a kernel only one thread stops: `condition` is true only for that thread, and the commands `at_launch` skip the
    other blocks. On a GPU, `thread` (linear block, warp, lane) must be at the stop. Returns `stops` (function, file,
    line, `values`, and `refusals` of expressions without a value) and `why`, the reason if the program ended.
    """
    main = debugger.insert("main")
    debugger.resume("run")  # the libraries are loaded now, so gdb can parse conditions and reject wrong locations
    debugger.delete(main)
    launches = {debugger.insert(location) for location in plan["anchors"]["launch"]}
    points = {debugger.insert(location, plan["condition"]) for location in plan["locations"]}
    stops: list[Document] = []
    while len(stops) < plan["stops"]:
        stop = debugger.resume("continue")
        if stop.reason != "breakpoint":
            return {"stops": stops, "why": f"{stop.reason} {stop.detail}".strip()}
        if launches.intersection(stop.breakpoints):
            for command in plan["at_launch"]:
                debugger.execute(command)
        if points.intersection(stop.breakpoints) and (not plan["thread"] or _counts(debugger, plan, stop)):
            stops.append({"function": stop.function, "file": stop.file, "line": stop.line} | _read(debugger, plan))
    debugger.execute("kill")
    return {"stops": stops, "why": ""}


def _read(debugger: Debugger, plan: Document) -> Document:
    """Read the expressions: `values`, and `refusals` of expressions without a value (see `examine.BreakRefusal`)."""
    values = dict(zip(plan["expressions"], debugger.evaluate(plan["expressions"]), strict=True))
    refusals: Document = {}
    for expression in (expression for expression, value in values.items() if value is None):
        reason = debugger.refusal(expression)
        unknown = UNKNOWN.search(reason)
        names = sorted(debugger.local_names()) if unknown else []
        near = difflib.get_close_matches(unknown[1], names, NEAR, 0.5) if unknown else []
        refusals[expression] = {"reason": " ".join(reason.split()), "near": near, "names": names}
    return {"values": values, "refusals": refusals}


def _counts(debugger: Debugger, plan: Document, stop: StopRecord) -> bool:
    """Whether the requested thread is at a stop on a GPU; if it is, the focus moves to it.

    A pattern may also match host code, where gdb would reject a condition on a thread. Before a kernel is loaded, its
    breakpoints are moved to the next line of host code; stops there do not count.
    """
    extents = debugger.evaluate(["gridDim.x", "gridDim.y"])
    if None in extents:
        return f"{PurePosixPath(stop.file).name}:{stop.line}" in plan["locations"]
    block, warp, lane = plan["thread"]
    width, height = (int(extent or 1) for extent in extents)
    at = f"{block % width},{block // width % height},{block // width // height}"
    try:
        debugger.execute(f"cuda block ({at}) thread ({lane},{warp},0)")
    except DebuggerError:  # the block has ended or has not started yet
        return False
    (frame,) = debugger.frames(1)
    return (frame.file, frame.line) == (stop.file, stop.line)
