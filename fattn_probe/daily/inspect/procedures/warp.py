"""Read a kernel at its steps and stages: the registers of a warp's lanes, and an output row in memory.

The procedures run inside gdb's Python and over MI: they import only the standard library and this package, and return
JSON. They do not interpret registers: `trace.fragments` maps them to elements; `trace.reference` has correct values.
"""

import math
import re
import struct
from collections import defaultdict
from collections.abc import Sequence, Set
from pathlib import PurePosixPath
from typing import Any

from fattn_probe.daily.inspect.procedures.blocks import insert_near
from fattn_probe.daily.inspect.procedures.op import LAUNCHER, trace_dispatch
from fattn_probe.machine.debug.protocol import Debugger, StopRecord
from fattn_probe.machine.debug.values import Numbers, numbers

Document = dict[str, Any]
Key = tuple[int, int | None, str]

LANES = 32
LOGITS, SOFTMAX, RESCALED, ACCUMULATED, SUNK = "logits", "softmax", "rescaled", "accumulated", "sunk"
ANCHORS = (LOGITS, SOFTMAX, RESCALED, ACCUMULATED, SUNK)
AFTER = frozenset((ACCUMULATED, SUNK))
"""Anchors after a tile's last step."""
ITERATION = "flash_attn_ext_f16_iter"
TILE_TYPE = re.compile(r"\btile<\s*(\d+),\s*(\d+),\s*(\w+)[^>]*?(\d*)\s*>")
SCRAMBLED = "40"
"""DATA_LAYOUT_I_MAJOR_SCRAMBLED of mma.cuh."""
TEMPLATE = re.compile(r"<\s*(\d+),\s*(\d+),\s*(\d+),\s*(\d+),\s*(\d+)\s*,")
OPTIMISED_OUT = "<optimized out>"
ACTIVE = re.compile(r"^[ *]*(\d+)\s+active\b", re.MULTILINE)
TEMPLATE_NAMES = ("DKQ", "DV", "ncols1", "ncols2", "nwarps")
SETTINGS = ("static-members off", "repeats unlimited", "elements unlimited", "pretty off")


def fiber(wave: int) -> tuple[str, str]:
    """gdb expressions for the warp and lane of the simulator's running thread, as llama.cpp's kernels count them.

    `wave` is the number of lanes in the GPU's warps. Tile and vec kernels always count 32 lanes (`blockDim.x`).
    """
    if wave == LANES:
        return "simt::self->warp->index", "simt::self->lane"
    width = f"(simt::blockDim.x < {wave} ? simt::blockDim.x : {wave})"
    thread = "(simt::self->thread_idx.x + simt::blockDim.x * simt::self->thread_idx.y)"
    return f"{thread} / {width}", f"{thread} % {width}"


class Lanes:
    """Access to the lanes of one warp of a block at a breakpoint.

    In the simulator, each lane is a fiber, and stops separately. On a real GPU, a warp stops as a whole.
    """

    def __init__(self, debugger: Debugger, plan: Document) -> None:
        self._debugger, self._simulated = debugger, plan["simulated"]
        self._block, self._warp = plan["block"], plan["warp"]
        self._fiber = fiber(plan["wave"])

    def insert(self, location: str, steps: Sequence[int]) -> list[int]:
        """Set breakpoints for this block and warp only; in the simulator, only in the given KV steps (empty: all).

        On a real GPU, `kb0` is optimised out, so the caller checks the step.
        """
        index = "simt::blockIdx" if self._simulated else "blockIdx"
        where = " && ".join(f"{index}.{axis} == {at}" for axis, at in zip("xyz", self._block, strict=True))
        if not self._simulated:
            return [self._debugger.insert(location, f"{where} && threadIdx.y == {self._warp}")]
        at = f"({' || '.join(f'kb0 == {step}' for step in steps)}) && " if steps else ""
        return self._debugger.insert_near(location, f"{at}{self._fiber[0]} == {self._warp} && {where}")

    def standing(self) -> Sequence[int]:
        """The lanes at the stop: the running fiber's lane; on a GPU, the active lanes if this warp has the focus."""
        if self._simulated:
            (lane,) = self._debugger.evaluate([self._fiber[1]])
            return () if lane is None else (int(lane),)
        names = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.y")
        if self._debugger.evaluate(names) != [str(number) for number in (*self._block, self._warp)]:
            return ()
        return [int(lane) for lane in ACTIVE.findall(self._debugger.execute("info cuda lanes"))]

    def focus(self, lane: int) -> None:
        """Switch to the lane's frame; in the simulator, the running fiber's frame is already selected."""
        if not self._simulated:
            self._debugger.execute(f"cuda lane {lane}")

    def bits(self, values: Numbers) -> Numbers:
        """The bits of halves; the simulator's half is already a struct of its bits.

        The decimal numbers that cuda-gdb prints have enough digits to identify each half.
        """
        if self._simulated:
            return values
        return [int.from_bytes(struct.pack("<e", value), "little") for value in values]


def trace_op(debugger: Debugger, plan: Document) -> Document:
    """Run the program up to the attention kernel's launch, then `read_trace`.

    `plan` is the plan of `read_trace` with `launch` among the anchors, plus `dispatch` (the plan of `trace_dispatch`),
    `linear` (the block's index) and `simulated` (the simulator runs only this block). If the program ends before the
    launch, the result has only `ended`.
    """
    ended = run_to_launch(debugger, plan)
    return {"ended": ended} if ended else read_trace(debugger, plan)


def run_to_launch(debugger: Debugger, plan: Document) -> list[str]:
    """Run the program up to the attention kernel's launch; returns how the program ended if it did not get there.

    `plan`: `anchors`, `dispatch`, `simulated`, and `linear` if the simulator runs only this block.
    """
    _, stop = trace_dispatch(debugger, plan["dispatch"])
    launch: list[int] = []
    if stop.function.startswith(LAUNCHER):
        launch = [number for location in plan["anchors"]["launch"] for number in debugger.insert_near(location)]
        stop = debugger.resume("continue")
    if not set(stop.breakpoints) & set(launch):
        return [stop.reason, stop.detail, stop.function]
    debugger.delete(*launch)
    if plan["simulated"] and "linear" in plan:
        debugger.execute(f"set var simt::focus.block = {plan['linear']}")
    return []


def read_trace(debugger: Debugger, plan: Document) -> Document:
    """Follow one warp through its block's tiles; the program has stopped at the kernel's launch.

    `plan`: `anchors` (gdb locations by name), `wave` (lanes per warp), `matrix` (the layout of sums in AMD's matrix
    instructions, empty for NVIDIA), `block` (x, y, z), `warp`, `tiles` (the number of tiles; None: all until the
    program stops for another reason), `kb0` (the only step to read, in the first tile that has it; None: all steps),
    `until_not_finite` (stop after the first anchor with a NaN or infinity).

    Returns `function` (with template arguments), `template` (DKQ, DV, ncols1, ncols2, nwarps by name), `KQ` and `VKQ`
    (fragment types: I, J, T), `places` (file:line by anchor), `stopped` (why the program stopped early, or empty) and
    `readings`. A reading has one lane's registers at one anchor: `anchor`, `lane`, `tile` (its number in the block),
    `kb0` (None after the last step) and `values` by variable:

    - at `logits`: KQ_C before the mask; KQ_max, KQ_rowsum and VKQ_C at the start of the step; `indices`, the KV rows
      that a sparse kernel gathers
    - at `softmax`: KQ_C, which is P by then, KQ_max, KQ_rowsum and KQ_max_scale
    - at `rescaled`: VKQ_C
    - at `accumulated`, after the last step, and at `sunk`, after lane sums and sinks: KQ_max, KQ_rowsum, VKQ_C

    A float register gives one number, a half2 register two: the bits of x and of y. Unreadable variables are missing.
    """
    return _Reader(debugger, plan).read()


class _Reader:
    """Reads a warp, and stores the readings."""

    def __init__(self, debugger: Debugger, plan: Document) -> None:
        self._debugger, self._plan, self._lanes = debugger, plan, Lanes(debugger, plan)
        self._kernel: Document = {"variables": {}, "places": {}}
        self._readings: list[Document] = []
        self._seen: defaultdict[Key, set[int]] = defaultdict(set)
        self._number = plan["wave"]
        self._tile = [0] * self._number
        self._not_finite: Key | None = None

    def read(self) -> Document:
        """Run the program until all requested registers have been read."""
        for setting in SETTINGS:
            self._debugger.execute(f"set print {setting}")
        points = self._insert(ACCUMULATED, SUNK, LOGITS) if self._one_step else self._insert(*ANCHORS)
        stop = self._debugger.resume("continue")
        while anchors := {points[number] for number in stop.breakpoints if number in points}:
            self._take(anchors, stop)
            if self._complete():
                break
            if self._one_step and self._readings and SOFTMAX not in points.values():
                points |= self._insert(SOFTMAX, RESCALED)  # inserted earlier, these would also stop in other steps
            stop = self._debugger.resume("continue")
        self._debugger.delete(*points)
        stopped = [] if anchors else [stop.reason, stop.detail, stop.function]
        return self._kernel | {"readings": self._readings, "stopped": stopped}

    @property
    def _one_step(self) -> bool:
        return self._plan["kb0"] is not None

    def _insert(self, *anchors: str) -> dict[int, str]:
        found = [(anchor, location) for anchor in anchors for location in self._plan["anchors"][anchor]]
        return {
            number: anchor for anchor, location in found for number in self._lanes.insert(location, self._steps(anchor))
        }

    def _steps(self, anchor: str) -> Sequence[int]:
        """The KV steps to stop in, empty for all; the results of a step are read at the start of the next step."""
        kb0 = self._plan["kb0"]
        if kb0 is None or anchor in AFTER:
            return ()
        return (kb0, kb0 + 1) if anchor == LOGITS else (kb0,)

    def _values(self, names: Sequence[str]) -> list[str | None]:
        """Read values in the newest frame, otherwise in its caller: cuda-gdb loses a parameter after its last use."""
        values = self._debugger.evaluate(names)
        lost = [at for at, value in enumerate(values) if value is None or OPTIMISED_OUT in value]
        if lost:
            outer = self._debugger.evaluate([names[at] for at in lost], level=1)
            for at, value in zip(lost, outer, strict=True):
                values[at] = None if value is not None and OPTIMISED_OUT in value else value
        return values

    def _take(self, anchors: Set[str], stop: StopRecord) -> None:
        """Read the lanes at a stop; it has several anchors if the debugger moved their breakpoints to the same line."""
        if (ITERATION in stop.function) == bool(AFTER & anchors):
            return  # after the last step, the rescale for the sinks is on the same line
        if ITERATION in stop.function and not self._kernel["variables"]:
            self._kernel |= _kernel(self._debugger, stop.function, self._plan)
        for lane in self._lanes.standing():
            self._lanes.focus(lane)
            for anchor in ANCHORS:
                if anchor in anchors and self._read(anchor, lane):
                    self._kernel["places"].setdefault(anchor, f"{PurePosixPath(stop.file).name}:{stop.line}")

    def _read(self, anchor: str, lane: int) -> bool:
        """Read one lane's registers; False if they were already read in this step (the anchor is in a loop)."""
        names = self._kernel["variables"].get(anchor, ())
        at, *values = self._values(("kb0", *(expression for expression, _ in names)))
        kb0 = int(at) if at is not None and anchor not in AFTER else None
        key = self._tile[lane], kb0, anchor
        steps = self._steps(anchor)
        if lane in self._seen[key] or (steps and kb0 not in steps):
            return False
        self._seen[key].add(lane)
        self._tile[lane] += anchor == SUNK
        read = {name: numbers(value) for (_, name), value in zip(names, values, strict=True) if value is not None}
        half = self._kernel["VKQ"]["T"] == "half2"
        if "VKQ_C" in read and half:
            read["VKQ_C"] = self._lanes.bits(read["VKQ_C"])
        self._readings.append({"anchor": anchor, "lane": lane, "tile": key[0], "kb0": kb0, "values": read})
        if self._not_finite is None and not _finite(read, half=half):
            self._not_finite = key
        return True

    def _complete(self) -> bool:
        tiles = self._plan["tiles"]
        if self._not_finite and self._plan["until_not_finite"] and len(self._seen[self._not_finite]) == self._number:
            return True
        if not self._one_step or min(self._tile) == tiles:
            return tiles is not None and min(self._tile) == tiles
        read = [(tile, kb0, anchor) for (tile, kb0, anchor), lanes in self._seen.items() if len(lanes) == self._number]
        done = {tile for tile, _, anchor in read if anchor == SOFTMAX}
        return any(tile in done and (kb0 == self._plan["kb0"] + 1 or kb0 is None) for tile, kb0, _ in read)


def _kernel(debugger: Debugger, function: str, plan: Document) -> Document:
    """Describe the kernel of the newest frame (its iteration): template arguments, fragments, register expressions."""
    template = TEMPLATE.search(function)
    values = [int(value) for value in template.groups()] if template else [0] * 5
    KQ, VKQ = (_fragment(debugger, name, plan) for name in ("KQ_C[0]", "VKQ_C[0]"))
    d_of_a_tile = 16 if VKQ["I"] == 16 else 8
    if plan["matrix"] and VKQ["T"] == "half2":
        d_of_a_tile = 2 * VKQ["J"]
    VKQ_C = f"*VKQ_C@{values[1] // d_of_a_tile}"
    columns = 1 if plan["matrix"] else 2
    state = ((f"*KQ_max@{columns}", "KQ_max"), (f"*KQ_rowsum@{columns}", "KQ_rowsum"))
    (gathers,) = debugger.evaluate(["indices != 0"], level=1)
    rows = (("*(indices + kb0*nbatch_fa)@nbatch_fa", "indices"),) if gathers == "true" else ()
    return {
        "function": function,
        "template": dict(zip(TEMPLATE_NAMES, values, strict=True)),
        "KQ": KQ,
        "VKQ": VKQ,
        "variables": {
            LOGITS: (("KQ_C", "KQ_C"), *state, (VKQ_C, "VKQ_C"), *rows),
            SOFTMAX: (("KQ_C", "KQ_C"), *state, ("KQ_max_scale", "KQ_max_scale")),
            RESCALED: ((VKQ_C, "VKQ_C"),),
            ACCUMULATED: (*state, (VKQ_C, "VKQ_C")),
            SUNK: (*state, (VKQ_C, "VKQ_C")),
        },
    }


def _fragment(debugger: Debugger, name: str, plan: Document) -> Document:
    """Parse I, J and T of `type = ggml_cuda_mma::tile<16, 8, __half2, ...>`, or of a typedef, `@local T_C_KQ`.

    The result also has the number of lanes in a warp, and AMD's layout.
    """
    answer = debugger.execute(f"whatis {name}")
    if "<" not in answer:
        answer = debugger.execute(f"whatis {answer.split()[-1]}")
    found = TILE_TYPE.search(answer)
    layout = f"{plan['matrix']} scrambled" if found and found[4] == SCRAMBLED else plan["matrix"]
    size = {"I": int(found[1]), "J": int(found[2]), "T": found[3].strip("_")} if found else {"I": 0, "J": 0, "T": ""}
    return size | {"lanes": plan["wave"], "layout": layout}


def _finite(read: dict[str, Numbers], *, half: bool) -> bool:
    """Whether all registers are finite; halves (VKQ_C) are bits, and not finite if the exponent is all ones."""
    return all(
        all(value & 0x7C00 != 0x7C00 for value in values if isinstance(value, int))
        if name == "VKQ_C" and half
        else all(map(math.isfinite, values))
        for name, values in read.items()
    )


def read_lanes(debugger: Debugger, plan: Document) -> Document:
    """Read the lanes of one warp of a block at some lines, until all lanes have reached the last line.

    `plan`: the plan of `run_to_launch`, plus `block`, `warp`, and `reads`, lines in the kernel's order: `anchor`,
    `locations`, `step` (an expression, empty after the last step) and `values` (expressions by name). Returns
    `readings` (`anchor`, `lane`, `step`, `values` by name) and `stopped` (the reason if the program ended early).
    """
    ended = run_to_launch(debugger, plan)
    if ended:
        return {"ended": ended}
    for setting in SETTINGS:
        debugger.execute(f"set print {setting}")
    lanes = Lanes(debugger, plan)
    reads = {read["anchor"]: read for read in plan["reads"]}
    points = {
        number: anchor
        for anchor, read in reads.items()
        for location in read["locations"]
        for number in lanes.insert(location, ())
    }
    readings: list[Document] = []
    seen: defaultdict[tuple[str, str | None], set[int]] = defaultdict(set)
    stopped: list[str] = []
    last = (plan["reads"][-1]["anchor"], None)
    while len(seen[last]) < LANES:
        stop = debugger.resume("continue")
        anchors = [points[number] for number in stop.breakpoints if number in points]
        if not anchors:
            stopped = [stop.reason, stop.detail, stop.function]
            break
        for lane in lanes.standing():
            lanes.focus(lane)
            for anchor in anchors:
                read = reads[anchor]
                expressions = [*([read["step"]] if read["step"] else []), *read["values"].values()]
                values = debugger.evaluate(expressions)
                step = values.pop(0) if read["step"] else None
                if lane in seen[anchor, step]:  # the line is in a loop
                    continue
                seen[anchor, step].add(lane)
                pairs = zip(read["values"], values, strict=True)
                found = {name: numbers(value) for name, value in pairs if value is not None}
                at = None if step is None else int(step)
                readings.append({"anchor": anchor, "lane": lane, "step": at, "values": found})
    debugger.delete(*points)
    return {"readings": readings, "stopped": stopped}


def read_row(debugger: Debugger, plan: Document) -> Document:
    """Read parts of buffers after the attention kernel (anchor `launched`) and after the combining kernels.

    `plan`: `parts`, a list of (anchor, buffer, offset, bytes), where a buffer is an expression for its address in
    `launch_fattn`. Returns `parts`, their bytes as hexadecimal digits in the same order (None: not reached), and
    `stopped`, the reason if the program ended early. The memory of a simulated GPU belongs to the program.
    """
    ended = run_to_launch(debugger, plan)
    if ended:
        return {"ended": ended}
    left = list(dict.fromkeys(part[0] for part in plan["parts"]))
    points = insert_near(debugger, plan["anchors"], left)
    found: list[str | None] = [None] * len(plan["parts"])
    while left:
        stop = debugger.resume("continue")
        reached = {points[number] for number in stop.breakpoints if number in points}
        if not reached:
            return {"parts": found, "stopped": [stop.reason, stop.detail, stop.function]}
        for at, (anchor, buffer, offset, count) in enumerate(plan["parts"]):
            if anchor in reached.intersection(left):
                (address,) = debugger.evaluate([buffer])
                if address is not None:
                    found[at] = debugger.memory(int(address) + offset, count).hex()
        left = [anchor for anchor in left if anchor not in reached]
    debugger.execute("kill")
    return {"parts": found, "stopped": []}
