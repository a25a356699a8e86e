"""Runs inside an interactive gdb: the commands `fattn tensors|launch|blocks|tile|step|break` for a stop in a kernel.

`start` runs once; its file, from `fattn_probe.daily.inspect.live`, has the facts found so far and the stop locations.
"""

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gdb
import gdb.printing
from gdb.FrameDecorator import FrameDecorator

from fattn_probe.machine.debug.protocol import without_parameters


def half_value(value: gdb.Value) -> float:
    """The value of a 16-bit float: bf16 if the type's name contains `bfloat`, otherwise f16."""
    name = "bits" if "bits" in {field.name for field in value.type.strip_typedefs().fields()} else "__x"
    bits = int(value[name]) & 0xFFFF
    if "bfloat" in str(value.type):
        return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
    return float(struct.unpack("<e", struct.pack("<H", bits))[0])


class Printer:
    """Base class of pretty-printers; gdb prints the value as `to_string` returns it."""

    def __init__(self, value: gdb.Value) -> None:
        self.value = value


class Half(Printer):
    """Prints a 16-bit float as a number."""

    def to_string(self) -> str:
        """The number, such as `0.5`."""
        return f"{half_value(self.value):.6g}"


class Half2(Printer):
    """Prints a pair of halves."""

    def to_string(self) -> str:
        """The pair, such as `(0.5, -1)`."""
        return f"({half_value(self.value['x']):.6g}, {half_value(self.value['y']):.6g})"


class Tile(Printer):
    """Prints one lane's part of a matrix fragment."""

    def to_string(self) -> str:
        """The type, such as `tile<16, 8, half2>`: rows, columns, element type."""
        name = str(self.value.type.strip_typedefs()).removeprefix("ggml_cuda_mma::").replace("__half", "half")
        return re.sub(r", \(ggml_cuda_mma::data_layout\)0", "", name)

    def children(self) -> Iterator[tuple[str, gdb.Value]]:
        """This lane's registers."""
        x = self.value["x"]
        low, high = x.type.range()
        return ((f"[{i}]", x[i]) for i in range(low, high + 1))

    def display_hint(self) -> str:
        """Tell gdb to print the children like the elements of an array."""
        return "array"


class Tensor(Printer):
    """Prints a ggml_tensor on one line, in ggml's order of dimensions."""

    def to_string(self) -> str:
        """The tensor, as in `K f16 ne={64, 256, 2, 1} nb={2, 128, 32768, 65536} data=0x7fff...`."""
        value = self.value
        type_name = str(value["type"]).removeprefix("GGML_TYPE_").lower()
        view = f" view of {value['view_src']['name'].string()} at {value['view_offs']}" if value["view_src"] else ""
        shape = f"ne={value['ne'].format_string()} nb={value['nb'].format_string()}"
        return f"{value['name'].string()} {type_name} {shape}{view} data={value['data']}"


def printers() -> gdb.printing.RegexpCollectionPrettyPrinter:
    """All printers, for `gdb.printing.register_pretty_printer`."""
    collection = gdb.printing.RegexpCollectionPrettyPrinter("fattn-probe")
    for name, pattern, printer in (
        ("half", r"^(__half|half|__nv_bfloat16|nv_bfloat16)$", Half),
        ("half2", r"^(__half2|half2|__nv_bfloat162|nv_bfloat162)$", Half2),
        ("tile", r"^ggml_cuda_mma::tile<.*>$", Tile),
        ("ggml_tensor", r"^ggml_tensor$", Tensor),
    ):
        collection.add_printer(name, pattern, printer)
    return collection


# Files of frames between a launch and its kernel: the simulator, and std::function and std::apply
MACHINERY = re.compile(r"(^|/)native/sim/|/include/c\+\+/")


class ShortFrame(FrameDecorator):
    """A frame whose function is shown without parameter types; a kernel has up to 40 of these."""

    def function(self) -> str | None:
        """The function's name, such as `flash_attn_ext_f16<64, 64, 8, 8, false, false, false>`."""
        name = super().function()
        if not isinstance(name, str):  # for a function without a name, gdb gives an address
            return name
        return without_parameters(name).replace("ggml_cuda_mma::", "")


class LaunchFilter:
    """A frame filter that hides the launch machinery, except the innermost frame."""

    name = "fattn-probe"
    enabled = True
    priority = 100

    def filter(self, iterator: Iterator[Any]) -> Iterator[FrameDecorator]:
        """The frames to show."""
        for at, frame in enumerate(iterator):  # address 0 comes after a fiber's first frame
            if at == 0 or not (frame.address() == 0 or MACHINERY.search(str(frame.filename() or ""))):
                yield ShortFrame(frame)


def shorten_backtraces() -> None:
    """Register the filter for `bt`; `bt -no-filters` still shows all frames."""
    gdb.frame_filters[LaunchFilter.name] = LaunchFilter()


TILE_VARIABLES = (
    *("k_VKQ_0", "kb0", "kb0_start", "kb0_stop", "jt", "zt_gqa", "z_KV", "zt", "sequence"),
    *("kbc", "kbc_stop", "iter_k"),
)
KERNEL = "flash_attn"  # occurs in the names of the kernels and of the functions that they call


class Fattn(gdb.Command):
    """fattn tensors|launch|blocks: show the facts that fattn-probe found about this op.
    fattn tile: show this thread's position, its block's tiles, and the variables that are set.
    fattn step: continue to this thread's next KV step, where KQ_max and the row sum can be printed.
    fattn break LOCATION: set a breakpoint for this thread only."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__("fattn", gdb.COMMAND_USER)
        self.plan = plan
        self.sections: dict[str, str] = plan["sections"]

    def complete(self, text: str, word: str) -> list[str]:
        """The possible completions of a word."""
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
    """This thread's position in the grid, the known work of its block, and its variables for the tile."""
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
    """A variable's value in the innermost frame that has it; None if no frame does.

    Empty if the variable is not set yet, because its declaration is on the current line or later. The lookup goes
    through the blocks' symbols, because `read_var` of a missing variable crashes cuda-gdb 13.0.
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
    """Set up the session that a file describes, and run to the kernel's first line."""
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
    """Run to a location silently."""
    point = temporary(location, condition)
    gdb.execute(command, to_string=True)
    point.delete()


def temporary(location: str, condition: str) -> gdb.Breakpoint:
    """Set a breakpoint that is hidden from the user."""
    point = gdb.Breakpoint(location, internal=True)
    point.silent = True
    point.condition = condition or None
    return point
