"""Reading one warp of the mma kernel step by step: its fragments, from the registers of all its lanes.

The procedure runs inside gdb's Python and over MI: it imports the standard library and this package only, and what it
returns is JSON. Nothing is interpreted here: `fragments` knows what a register holds, `trace_reference` what it should.
"""

import math
import re
import struct
from collections import defaultdict
from collections.abc import Sequence, Set
from pathlib import PurePosixPath
from typing import Any, Protocol

from fattn_probe.debug.protocol import Debugger, Stop
from fattn_probe.inspect.procedures.dispatch import LAUNCHER
from fattn_probe.inspect.procedures.op import to_launch

Document = dict[str, Any]
Registers = list[float | int]
Key = tuple[int, int | None, str]

LANES = 32
LOGITS, SOFTMAX, RESCALED, ACCUMULATED = "logits", "softmax", "rescaled", "accumulated"
ANCHORS = (LOGITS, SOFTMAX, RESCALED, ACCUMULATED)
ITERATION = "flash_attn_ext_f16_iter"
TILE_TYPE = re.compile(r"\btile<\s*(\d+),\s*(\d+),\s*(\w+)")
TEMPLATE = re.compile(r"<\s*(\d+),\s*(\d+),\s*(\d+),\s*(\d+),\s*(\d+)\s*,")
TOKEN = re.compile(
    r"\w+ = (?=[{\d.naif+-])"  # a member's name
    r"|(-?nan(?:\(\w+\))?|-?inf|[-+]?\d[\d.]*(?:e[-+]?\d+)?)"
    r"|<repeats (\d+) times>"
)
OPTIMISED_OUT = "<optimized out>"
ACTIVE = re.compile(r"^[ *]*(\d+)\s+active\b", re.MULTILINE)
TEMPLATE_NAMES = ("DKQ", "DV", "ncols1", "ncols2", "nwarps")
SETTINGS = ("static-members off", "repeats unlimited", "elements unlimited", "pretty off")


class Lanes(Protocol):
    """Which lanes of a warp stand at a breakpoint, and how to look into one of them."""

    def insert(self, debugger: Debugger, location: str, steps: Sequence[int]) -> list[int]:
        """Breakpoints at which this block and warp alone stops, and in these KV steps (none: all) if it can tell."""
        ...

    def standing(self, debugger: Debugger) -> Sequence[int]:
        """The lanes that stand where the program has stopped."""
        ...

    def focus(self, debugger: Debugger, lane: int) -> None:
        """Make the newest frame the lane's."""
        ...

    def bits(self, values: Registers) -> Registers:
        """The bits of halves, as this debugger prints them."""
        ...


class Fibers:
    """The simulator: each lane is a fiber and stops by itself."""

    def __init__(self, block: Sequence[int], warp: int) -> None:
        self._where = " && ".join(f"simt::blockIdx.{axis} == {at}" for axis, at in zip("xyz", block, strict=True))
        self._warp = warp

    def insert(self, debugger: Debugger, location: str, steps: Sequence[int]) -> list[int]:
        """A condition on the running fiber: its step, its warp, its block."""
        at = f"({' || '.join(f'kb0 == {step}' for step in steps)}) && " if steps else ""
        return debugger.insert_near(location, f"{at}simt::self->warp->index == {self._warp} && {self._where}")

    def standing(self, debugger: Debugger) -> Sequence[int]:
        """The one fiber that runs."""
        (lane,) = debugger.evaluate(["simt::self->lane"])
        return () if lane is None else (int(lane),)

    def focus(self, debugger: Debugger, lane: int) -> None:
        """Nothing: it is the running one."""

    def bits(self, values: Registers) -> Registers:
        """As they are: here a half is a struct with its bits in it."""
        return values


class GpuLanes:
    """A real GPU: a warp stops as one, and cuda-gdb looks into one lane after another."""

    def __init__(self, block: Sequence[int], warp: int) -> None:
        self._thread = [*block, warp]

    def insert(self, debugger: Debugger, location: str, steps: Sequence[int]) -> list[int]:
        """A condition on block and warp; not on `kb0`, which is optimised out there: the reader looks at it."""
        x, y, z, warp = self._thread
        where = f"blockIdx.x == {x} && blockIdx.y == {y} && blockIdx.z == {z} && threadIdx.y == {warp}"
        return [debugger.insert(location, where)]

    def standing(self, debugger: Debugger) -> Sequence[int]:
        """The active lanes of the warp in focus, if it is this one."""
        names = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.y")
        if debugger.evaluate(names) != [str(number) for number in self._thread]:
            return ()
        return [int(lane) for lane in ACTIVE.findall(debugger.execute("info cuda lanes"))]

    def focus(self, debugger: Debugger, lane: int) -> None:
        """cuda-gdb's focus."""
        debugger.execute(f"cuda lane {lane}")

    def bits(self, values: Registers) -> Registers:
        """cuda-gdb prints a half as a decimal number, with digits enough to tell it from any other."""
        return [int.from_bytes(struct.pack("<e", value), "little") for value in values]


def trace_op(debugger: Debugger, plan: Document) -> Document:
    """Run the program to the attention kernel's launch, and `read_trace` from there.

    `plan` is that of `read_trace`, with `launch` among the anchors, `dispatch`, which `to_launch` takes, and `linear`,
    the block's index, `simulated`: the simulator then runs this block alone. A program that ends before the launch
    leaves `ended`, and nothing else.
    """
    stop = to_launch(debugger, plan)
    launch: list[int] = []
    if stop.function.startswith(LAUNCHER):
        launch = [number for location in plan["anchors"]["launch"] for number in debugger.insert_near(location)]
        stop = debugger.resume("continue")
    if not set(stop.breakpoints) & set(launch):
        return {"ended": [stop.reason, stop.detail, stop.function]}
    debugger.delete(*launch)
    if plan["simulated"]:
        debugger.execute(f"set var simt::focus.block = {plan['linear']}")
    return read_trace(debugger, plan)


def read_trace(debugger: Debugger, plan: Document) -> Document:
    """Follow one warp through its block's tiles, the program standing at the kernel's launch.

    `plan`: `anchors` (gdb locations by name), `block` (x, y, z), `warp`, `tiles` (how many the block has; None: until
    something else stops the program), `kb0` (the one step to read, of the first tile that has it; None: all steps),
    `until_not_finite` (end with the first anchor at which NaN or an infinity stands).

    What it returns: `function` (with its template arguments), `template` (DKQ, DV, ncols1, ncols2, nwarps by name),
    `KQ` and `VKQ` (fragment types: I, J, T), `places` (file:line by anchor), `stopped` (why the program stopped early,
    else empty) and `readings`. A reading is what one lane has at one anchor: `anchor`, `lane`, `tile` (ordinal among
    the block's), `kb0` (None behind the last step) and the values of registers by variable: KQ_C, KQ_max, KQ_rowsum and
    VKQ_C at `logits` (before the mask; the last three as the step finds them), KQ_C (P by now), KQ_max, KQ_rowsum and
    KQ_max_scale at `softmax`, VKQ_C at `rescaled`; KQ_max, KQ_rowsum and VKQ_C at `accumulated`, behind the last step.
    float registers are one number each, half2 registers two, the bits of x and of y. A variable that could not be read
    is missing. `indices` at `logits` are the KV rows that a sparse kernel gathers.
    """
    lanes = Fibers if plan["simulated"] else GpuLanes
    return _Reader(debugger, plan, lanes(plan["block"], plan["warp"])).read()


def numbers(text: str) -> Registers:
    """The numbers of a value as gdb prints it, in order: arrays, structs, `<repeats N times>`, nan and inf."""
    found: Registers = []
    last: Registers = []
    for token in TOKEN.finditer(text):
        if token[2]:
            found.extend(last * (int(token[2]) - 1))
        elif token[1]:
            last = [_number(token[1])]
            found.extend(last)
    return found


def _number(text: str) -> float | int:
    if "nan" in text:
        return math.nan
    return float(text) if re.search(r"[.ein]", text) else int(text)


class _Reader:
    """One reading of a warp, and what has come of it so far."""

    def __init__(self, debugger: Debugger, plan: Document, lanes: Lanes) -> None:
        self._debugger, self._plan, self._lanes = debugger, plan, lanes
        self._kernel: Document = {"variables": {}, "places": {}}
        self._readings: list[Document] = []
        self._seen: defaultdict[Key, set[int]] = defaultdict(set)
        self._tile = [0] * LANES
        self._not_finite: Key | None = None

    def read(self) -> Document:
        """Run the program until everything requested has been read."""
        for setting in SETTINGS:
            self._debugger.execute(f"set print {setting}")
        points = self._insert(ACCUMULATED, LOGITS) if self._one_step else self._insert(*ANCHORS)
        stop = self._debugger.resume("continue")
        while anchors := {points[number] for number in stop.breakpoints if number in points}:
            self._take(anchors, stop)
            if self._complete():
                break
            if self._one_step and self._readings and SOFTMAX not in points.values():
                points |= self._insert(SOFTMAX, RESCALED)  # until here they would only have stopped other steps
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
            number: anchor
            for anchor, location in found
            for number in self._lanes.insert(self._debugger, location, self._steps(anchor))
        }

    def _steps(self, anchor: str) -> Sequence[int]:
        """The KV steps to stop in, none for all; the step behind the one asked for finds what that one leaves."""
        kb0 = self._plan["kb0"]
        if kb0 is None or anchor == ACCUMULATED:
            return ()
        return (kb0, kb0 + 1) if anchor == LOGITS else (kb0,)

    def _values(self, names: Sequence[str]) -> list[str | None]:
        """Expressions in the newest frame, or in its caller's: cuda-gdb loses a parameter after its last use."""
        values = self._debugger.evaluate(names)
        lost = [at for at, value in enumerate(values) if value is None or OPTIMISED_OUT in value]
        if lost:
            outer = self._debugger.evaluate([names[at] for at in lost], level=1)
            for at, value in zip(lost, outer, strict=True):
                values[at] = None if value is not None and OPTIMISED_OUT in value else value
        return values

    def _take(self, anchors: Set[str], stop: Stop) -> None:
        """Read what a stop shows: at several anchors at once where the debugger moved one to the next one's line."""
        if (ITERATION in stop.function) == (ACCUMULATED in anchors):
            return  # the sinks' rescale, behind the last step, has the line of an iteration's
        if ITERATION in stop.function and not self._kernel["variables"]:
            self._kernel |= _kernel(self._debugger, stop.function)
        for lane in self._lanes.standing(self._debugger):
            self._lanes.focus(self._debugger, lane)
            for anchor in ANCHORS:
                if anchor in anchors and self._read(anchor, lane):
                    self._kernel["places"].setdefault(anchor, f"{PurePosixPath(stop.file).name}:{stop.line}")

    def _read(self, anchor: str, lane: int) -> bool:
        """One lane's registers; False if it has been here in this step (an anchor in a loop)."""
        names = self._kernel["variables"].get(anchor, ())
        at, *values = self._values(("kb0", *(expression for expression, _ in names)))
        kb0 = int(at) if at is not None and anchor != ACCUMULATED else None
        key = self._tile[lane], kb0, anchor
        if lane in self._seen[key] or not self._asked(anchor, kb0):
            return False
        self._seen[key].add(lane)
        self._tile[lane] += anchor == ACCUMULATED
        read = {name: numbers(value) for (_, name), value in zip(names, values, strict=True) if value is not None}
        if "VKQ_C" in read:
            read["VKQ_C"] = self._lanes.bits(read["VKQ_C"])
        self._readings.append({"anchor": anchor, "lane": lane, "tile": key[0], "kb0": kb0, "values": read})
        if self._not_finite is None and not _finite(read):
            self._not_finite = key
        return True

    def _asked(self, anchor: str, kb0: int | None) -> bool:
        steps = self._steps(anchor)
        return not steps or kb0 in steps

    def _complete(self) -> bool:
        tiles = self._plan["tiles"]
        if self._not_finite and self._plan["until_not_finite"] and len(self._seen[self._not_finite]) == LANES:
            return True
        if not self._one_step or min(self._tile) == tiles:
            return tiles is not None and min(self._tile) == tiles
        read = [(tile, kb0, anchor) for (tile, kb0, anchor), lanes in self._seen.items() if len(lanes) == LANES]
        done = {tile for tile, _, anchor in read if anchor == SOFTMAX}
        return any(tile in done and (kb0 == self._plan["kb0"] + 1 or kb0 is None) for tile, kb0, _ in read)


def _kernel(debugger: Debugger, function: str) -> Document:
    """The kernel whose iteration the newest frame is: template arguments, fragments, how its registers are spelt."""
    template = TEMPLATE.search(function)
    values = [int(value) for value in template.groups()] if template else [0] * 5
    KQ, VKQ = (_fragment(debugger, name) for name in ("KQ_C[0]", "VKQ_C[0]"))
    VKQ_C = f"*VKQ_C@{values[1] // (16 if VKQ['I'] == 16 else 8)}"
    state = (("*KQ_max@2", "KQ_max"), ("*KQ_rowsum@2", "KQ_rowsum"))
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
        },
    }


def _fragment(debugger: Debugger, name: str) -> Document:
    """I, J and T of `type = ggml_cuda_mma::tile<16, 8, __half2, ...>`, or of `type = @local T_C_KQ`, which is one."""
    answer = debugger.execute(f"whatis {name}")
    if "<" not in answer:
        answer = debugger.execute(f"whatis {answer.split()[-1]}")
    found = TILE_TYPE.search(answer)
    return {"I": int(found[1]), "J": int(found[2]), "T": found[3].strip("_")} if found else {"I": 0, "J": 0, "T": ""}


def _finite(read: dict[str, Registers]) -> bool:
    """Whether all registers hold finite numbers: of bits, where the exponent is not all ones."""
    return all(
        all(value & 0x7C00 != 0x7C00 for value in values if isinstance(value, int))
        if name == "VKQ_C"
        else all(map(math.isfinite, values))
        for name, values in read.items()
    )
