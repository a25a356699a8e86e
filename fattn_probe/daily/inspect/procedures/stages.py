"""Read a kernel's values at its stages: a warp's registers in a block, and a row of the output in memory.

Standard library only, because gdb's own Python loads this module.
"""

from collections import defaultdict
from typing import Any

from fattn_probe.daily.inspect.procedures.blocks import insert_near
from fattn_probe.daily.inspect.procedures.warp import LANES, SETTINGS, Lanes, numbers, run_to_launch
from fattn_probe.machine.debug.protocol import Debugger

Document = dict[str, Any]


def read_lanes(debugger: Debugger, plan: Document) -> Document:
    """Read the lanes of one warp of a block at some lines, until all lanes have reached the last one.

    `plan`: that of `run_to_launch`, `block`, `warp`, and `reads`, lines in the kernel's order: `anchor`, `locations`,
    `step` (an expression, empty after the last step) and `values` (expressions by name). Returns `readings` (`anchor`,
    `lane`, `step`, `values` by name) and `stopped`, why the program ended early.
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
                if lane in seen[anchor, step]:  # a line in a loop
                    continue
                seen[anchor, step].add(lane)
                pairs = zip(read["values"], values, strict=True)
                found = {name: numbers(value) for name, value in pairs if value is not None}
                at = None if step is None else int(step)
                readings.append({"anchor": anchor, "lane": lane, "step": at, "values": found})
    debugger.delete(*points)
    return {"readings": readings, "stopped": stopped}


def read_row(debugger: Debugger, plan: Document) -> Document:
    """Read parts of buffers in memory after the attention kernel (`launched`), and after the kernels that combine.

    `plan`: `parts`, a list of (anchor, buffer, offset, bytes), where a buffer is an expression for its address in
    `launch_fattn`. Returns `parts`, their bytes as hexadecimal digits in the same order (None: not reached), and
    `stopped`, why the program ended early. The memory of a simulated GPU belongs to the program.
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
