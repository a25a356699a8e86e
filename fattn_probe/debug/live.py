"""Inside gdb, for people: `fattn tensors|launch|blocks|tile|break` at a kernel's first line.

`start` is called once with a file that `fattn_probe.inspect.live` wrote: what was found out before, and where to stop.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gdb
import gdb.printing

from fattn_probe.debug.printers import printers

TILE_VARIABLES = ("kb0", "kb0_start", "kb0_stop", "jt", "zt_gqa", "z_KV", "zt", "sequence", "kbc", "kbc_stop", "iter_k")
THREAD = "block ({bx}, {by}, {bz}), thread ({x}, {y}, {z}): warp {warp}, lane {lane}"


class Fattn(gdb.Command):
    """fattn tensors|launch|blocks: what fattn-probe found of this op.
    fattn tile: where this thread is, and in which tile and KV step.
    fattn break LOCATION: a breakpoint for this thread alone; others pass it."""

    def __init__(self, sections: dict[str, str], condition: str) -> None:
        super().__init__("fattn", gdb.COMMAND_USER)
        self.sections = sections
        self.condition = condition

    def complete(self, text: str, word: str) -> list[str]:
        """The words that may follow."""
        return [name for name in (*self.sections, "tile", "break") if name.startswith(word)]

    def invoke(self, argument: str, from_tty: bool) -> None:
        """Run one of the subcommands."""
        name, _, rest = argument.strip().partition(" ")
        if name in self.sections:
            gdb.write(self.sections[name] + "\n")
        elif name == "tile":
            gdb.write("\n".join(tile_lines()) + "\n")
        elif name == "break" and rest:
            gdb.Breakpoint(rest).condition = self.condition
        else:
            raise gdb.GdbError(f"fattn {'|'.join(self.sections)}|tile|break LOCATION")


def tile_lines() -> Iterator[str]:
    """This thread's place in its grid, and the variables of the tile it works on, from whichever frame has them."""
    fiber = gdb.parse_and_eval("simt::self")
    if not int(fiber):
        raise gdb.GdbError("this is host code: the program is not in a kernel")
    index, thread = gdb.parse_and_eval("simt::blockIdx"), fiber["thread_idx"]
    places = {f"b{axis}": int(index[axis]) for axis in "xyz"} | {axis: int(thread[axis]) for axis in "xyz"}
    yield THREAD.format(**places, warp=int(fiber["warp"]["index"]), lane=int(fiber["lane"]))
    for name in TILE_VARIABLES:
        value = nearest(name)
        if value is not None:
            yield f"{name} = {value}"


def nearest(name: str) -> str | None:
    """The variable in the innermost frame that has it."""
    frame: gdb.Frame | None = gdb.selected_frame()
    while frame is not None and (frame.name() or "").startswith("flash_attn"):
        try:
            return frame.read_var(name).format_string()
        except ValueError:
            frame = frame.older()
    return None


def start(path: str) -> None:
    """Set up the session that the file describes, and run to the kernel's first line."""
    plan: dict[str, Any] = json.loads(Path(path).read_text())
    gdb.printing.register_pretty_printer(None, printers(), replace=True)
    Fattn(plan["sections"], plan["condition"])
    for setting in plan["settings"]:
        gdb.execute(f"set {setting}")
    launch = gdb.Breakpoint(plan["launch"], internal=True)
    gdb.execute("run", to_string=True)
    launch.delete()
    for setting in plan["at_launch"]:
        gdb.execute(f"set var {setting}")
    kernel = gdb.Breakpoint(plan["kernel"], internal=True)
    kernel.condition = plan["condition"]
    gdb.execute("continue", to_string=True)
    kernel.delete()
    gdb.execute("frame")
    gdb.write(plan["welcome"] + "\n")
