"""Inside an interactive gdb: the commands `fattn tensors|launch|blocks|tile|break` at a kernel's first line.

`start` runs once with a file that `fattn_probe.inspect.live` wrote: the facts found before, and where to stop.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gdb
import gdb.printing

from fattn_probe.debug.backtrace import shorten_backtraces
from fattn_probe.debug.printers import printers

TILE_VARIABLES = ("kb0", "kb0_start", "kb0_stop", "jt", "zt_gqa", "z_KV", "zt", "sequence", "kbc", "kbc_stop", "iter_k")
KERNEL = "flash_attn"  # in the names of the kernels and of the functions that they call


class Fattn(gdb.Command):
    """fattn tensors|launch|blocks: the facts that fattn-probe found about this op.
    fattn tile: the position of this thread, its tile and its KV step.
    fattn break LOCATION: a breakpoint at which only this thread stops."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__("fattn", gdb.COMMAND_USER)
        self.plan = plan
        self.sections: dict[str, str] = plan["sections"]

    def complete(self, text: str, word: str) -> list[str]:
        """The possible next words."""
        return [name for name in (*self.sections, "tile", "break") if name.startswith(word)]

    def invoke(self, argument: str, from_tty: bool) -> None:
        """Run one of the subcommands."""
        name, _, rest = argument.strip().partition(" ")
        if name in self.sections:
            gdb.write(self.sections[name] + "\n")
        elif name == "tile":
            gdb.write("\n".join(tile_lines(self.plan["block"], self.plan["thread"])) + "\n")
        elif name == "break" and rest:
            gdb.Breakpoint(rest).condition = self.plan["condition"] or None
        else:
            raise gdb.GdbError(f"fattn {'|'.join(self.sections)}|tile|break LOCATION")


def tile_lines(block: str, thread: str) -> Iterator[str]:
    """This thread's place in its grid, and the variables of its tile, from the nearest frame that has them."""
    if KERNEL not in (gdb.selected_frame().name() or ""):
        raise gdb.GdbError("fattn tile: this frame is not a flash-attention kernel's")
    for name, expression in (("block", block), ("thread", thread)):
        value = gdb.parse_and_eval(expression)
        yield f"{name} ({', '.join(str(int(value[axis])) for axis in 'xyz')})"
    for name in TILE_VARIABLES:
        found = nearest(name)
        if found is not None:
            yield f"{name} = {found}"


def nearest(name: str) -> str | None:
    """The variable's value in the innermost frame that has it; None if no frame does.

    It is searched among the symbols of the blocks, since `read_var` of a missing variable crashes cuda-gdb 13.0.
    """
    frame: gdb.Frame | None = gdb.selected_frame()
    while frame is not None and KERNEL in (frame.name() or ""):
        block: gdb.Block | None = frame.block()
        while block is not None and not block.is_static and not block.is_global:
            for symbol in block:
                if symbol.name == name and not (value := symbol.value(frame)).is_optimized_out:
                    return value.format_string()
            block = block.superblock
        frame = frame.older()
    return None


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
    point = gdb.Breakpoint(location, internal=True)
    point.silent = True
    point.condition = condition or None
    gdb.execute(command, to_string=True)
    point.delete()
