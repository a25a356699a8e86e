"""Inside an interactive gdb: the commands `fattn tensors|launch|blocks|tile|step|break`, from a kernel's first line on.

`start` runs once with a file that `fattn_probe.daily.inspect.live` wrote: the facts found so far, and the places to
stop.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gdb
import gdb.printing

from fattn_probe.machine.debug.printers import printers, shorten_backtraces

TILE_VARIABLES = (
    *("k_VKQ_0", "kb0", "kb0_start", "kb0_stop", "jt", "zt_gqa", "z_KV", "zt", "sequence"),
    *("kbc", "kbc_stop", "iter_k"),
)
KERNEL = "flash_attn"  # in the names of the kernels and of the functions that they call


class Fattn(gdb.Command):
    """fattn tensors|launch|blocks: the facts that fattn-probe found about this op.
    fattn tile: the position of this thread, its block's tiles, and its variables that are set.
    fattn step: continue to this thread's next KV step, where KQ_max and the row sum can be printed.
    fattn break LOCATION: a breakpoint at which only this thread stops."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__("fattn", gdb.COMMAND_USER)
        self.plan = plan
        self.sections: dict[str, str] = plan["sections"]

    def complete(self, text: str, word: str) -> list[str]:
        """The possible next words."""
        return [name for name in (*self.sections, "tile", "step", "break") if name.startswith(word)]

    def invoke(self, argument: str, from_tty: bool) -> None:
        """Run one of the subcommands."""
        name, _, rest = argument.strip().partition(" ")
        if name in self.sections:
            gdb.write(self.sections[name] + "\n")
        elif name == "tile":
            gdb.write("\n".join(tile_lines(self.plan)) + "\n")
        elif name == "step":
            step(self.plan["steps"], self.plan["condition"])
        elif name == "break" and rest:
            gdb.Breakpoint(rest).condition = self.plan["condition"] or None
        else:
            raise gdb.GdbError(f"fattn {'|'.join(self.sections)}|tile|step|break LOCATION")


def tile_lines(plan: dict[str, Any]) -> Iterator[str]:
    """This thread's position in the grid, the known work of its block, and its variables of a tile."""
    if not gdb.selected_inferior().pid or KERNEL not in (gdb.selected_frame().name() or ""):
        raise gdb.GdbError("fattn tile: this frame is not in a flash-attention kernel")
    place = []
    for name in ("block", "thread"):
        value = gdb.parse_and_eval(plan[name])
        place.append(", ".join(str(int(value[axis])) for axis in "xyz"))
        yield f"{name} ({place[-1]})"
    yield from plan["work"].get(place[0], ())
    variables = {name: found for name in TILE_VARIABLES if (found := nearest(name)) is not None}
    yield from (f"{name} = {value}" for name, value in variables.items() if value)
    if unset := [name for name, value in variables.items() if not value]:
        yield f"not set yet at this line: {', '.join(unset)}"


def nearest(name: str) -> str | None:
    """The variable's value in the innermost frame that has it; None if no frame does.

    Empty if its declaration is on the current line or a later one, so that it is not set yet. It is looked up in the
    symbols of the blocks, because `read_var` of a missing variable crashes cuda-gdb 13.0.
    """
    frame: gdb.Frame | None = gdb.selected_frame()
    while frame is not None and KERNEL in (frame.name() or ""):
        block: gdb.Block | None = frame.block()
        while block is not None and not block.is_static and not block.is_global:
            for symbol in block:
                if symbol.name == name and not (value := symbol.value(frame)).is_optimized_out:
                    is_set = symbol.is_argument or symbol.line < frame.find_sal().line
                    return value.format_string() if is_set else ""
            block = block.superblock
        frame = frame.older()
    return None


def step(locations: list[str], condition: str) -> None:
    """Continue to the thread's next stop at one of the locations."""
    if not locations:
        raise gdb.GdbError("fattn step: this source has no line where a KV step is known to begin")
    if not gdb.selected_inferior().pid:
        raise gdb.GdbError("fattn step: the program has ended")
    points = [temporary(location, condition) for location in locations]
    gdb.execute("continue", to_string=True)
    for point in points:
        point.delete()
    if not gdb.selected_inferior().pid:
        raise gdb.GdbError("fattn step: the program ended; this thread has no more KV steps")
    gdb.execute("frame")


def start(path: str) -> None:
    """Set up the session that the file describes, and run to the kernel's first line."""
    plan: dict[str, Any] = json.loads(Path(path).read_text())
    gdb.printing.register_pretty_printer(None, printers(), replace=True)
    shorten_backtraces()
    Fattn(plan)
    for command in plan["before"]:
        gdb.execute(command)
    run_to("run", "main")
    run_to("continue", plan["launch"])
    for command in plan["at_launch"]:
        gdb.execute(command)
    for command in plan["enter"]:
        gdb.execute(command, to_string=True)
    if not plan["enter"]:
        run_to("continue", f"*{int(gdb.parse_and_eval('fattn_kernel')):#x}", plan["condition"])
    gdb.execute("next", to_string=True)  # past the function's prologue, where its arguments can be read
    gdb.write(plan["welcome"] + "\n")
    gdb.execute("frame")


def run_to(command: str, location: str, condition: str = "") -> None:
    """Run to a location without output."""
    point = temporary(location, condition)
    gdb.execute(command, to_string=True)
    point.delete()


def temporary(location: str, condition: str) -> gdb.Breakpoint:
    """A breakpoint that is hidden from the user."""
    point = gdb.Breakpoint(location, internal=True)
    point.silent = True
    point.condition = condition or None
    return point
