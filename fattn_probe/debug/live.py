"""Inside gdb, for people: `fattn tensors|launch|blocks|tile|break` at a kernel's first line.

`start` is called once with a file that `fattn_probe.inspect.live` wrote: what was found out before, and where to stop.
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
KERNEL = "flash_attn"  # in the names of the kernels and of what they call


class Fattn(gdb.Command):
    """fattn tensors|launch|blocks: what fattn-probe found of this op.
    fattn tile: where this thread is, and in which tile and KV step.
    fattn break LOCATION: a breakpoint for this thread alone; others pass it."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__("fattn", gdb.COMMAND_USER)
        self.plan = plan
        self.sections: dict[str, str] = plan["sections"]

    def complete(self, text: str, word: str) -> list[str]:
        """The words that may follow."""
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
    """This thread's place in its grid, and the variables of the tile it works on, from whichever frame has them."""
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
    """The variable in the innermost frame that has it.

    Found among the symbols of its blocks: `read_var` of one that is not there ends cuda-gdb 13.0.
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
    gdb.execute("next", to_string=True)  # behind the function's entry, where its arguments can be read
    gdb.write(plan["welcome"] + "\n")
    gdb.execute("frame")


def run_to(command: str, location: str, condition: str = "") -> None:
    """Run to a place without output."""
    point = gdb.Breakpoint(location, internal=True)
    point.silent = True
    point.condition = condition or None
    gdb.execute(command, to_string=True)
    point.delete()
