"""Inside gdb: pretty-printers for `ggml_tensor`, halves and register tiles."""

import re
import struct
from collections.abc import Iterator

import gdb
import gdb.printing

HALF = re.compile(r"^(__half|half|__nv_bfloat16|nv_bfloat16)$")
HALF2 = re.compile(r"^(__half2|half2|__nv_bfloat162|nv_bfloat162)$")
TILE = re.compile(r"^ggml_cuda_mma::tile<.*>$")


def half_value(value: gdb.Value) -> float:
    """The value of 16 bits: bf16 if the type's name says so, else f16."""
    fields = {field.name: field for field in value.type.strip_typedefs().fields()}
    name = "bits" if "bits" in fields else "__x"
    bits = int(value[name]) & 0xFFFF
    if "bfloat" in str(value.type):
        return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
    return float(struct.unpack("<e", struct.pack("<H", bits))[0])


class Half:
    """Prints a 16-bit float as a number."""

    def __init__(self, value: gdb.Value) -> None:
        self.value = value

    def to_string(self) -> str:
        """`0.5`."""
        return f"{half_value(self.value):.6g}"


class Half2:
    """Prints a pair of halves."""

    def __init__(self, value: gdb.Value) -> None:
        self.value = value

    def to_string(self) -> str:
        """`(0.5, -1)`."""
        return f"({half_value(self.value['x']):.6g}, {half_value(self.value['y']):.6g})"


class Tile:
    """Prints one lane's part of a matrix fragment."""

    def __init__(self, value: gdb.Value) -> None:
        self.value = value

    def to_string(self) -> str:
        """`tile<16, 8, half2>`: rows, columns, element type."""
        name = str(self.value.type.strip_typedefs()).removeprefix("ggml_cuda_mma::").replace("__half", "half")
        return re.sub(r", \(ggml_cuda_mma::data_layout\)0", "", name)

    def children(self) -> Iterator[tuple[str, gdb.Value]]:
        """This lane's registers."""
        x = self.value["x"]
        low, high = x.type.range()
        return ((f"[{i}]", x[i]) for i in range(low, high + 1))

    def display_hint(self) -> str:
        """Print the children as those of an array."""
        return "array"


class Tensor:
    """Prints a ggml_tensor on one line, in ggml's order of dimensions."""

    def __init__(self, value: gdb.Value) -> None:
        self.value = value

    def to_string(self) -> str:
        """`K f16 ne={64, 256, 2, 1} nb={2, 128, 32768, 65536} data=0x7fff...`."""
        value = self.value
        type_name = str(value["type"]).removeprefix("GGML_TYPE_").lower()
        view = f" view of {value['view_src']['name'].string()} at {value['view_offs']}" if value["view_src"] else ""
        shape = f"ne={value['ne'].format_string()} nb={value['nb'].format_string()}"
        return f"{value['name'].string()} {type_name} {shape}{view} data={value['data']}"


def printers() -> gdb.printing.RegexpCollectionPrettyPrinter:
    """All printers, for `gdb.printing.register_pretty_printer`."""
    collection = gdb.printing.RegexpCollectionPrettyPrinter("fattn-probe")
    for name, pattern, printer in (
        ("half", HALF.pattern, Half),
        ("half2", HALF2.pattern, Half2),
        ("tile", TILE.pattern, Tile),
        ("ggml_tensor", r"^ggml_tensor$", Tensor),
    ):
        collection.add_printer(name, pattern, printer)
    return collection
