"""Read the resources that AMD kernels use from clang's assembly, and write them to a table."""

import csv
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device.origin import AMD_TABLE

TABLE = Path(__file__).resolve().parents[2] / "fattn_probe/cases/device" / AMD_TABLE
NO_CODE = "-"
KEYS = ("vgpr_count", "agpr_count", "sgpr_count", "group_segment_fixed_size", "private_segment_fixed_size")
"""The figures in a kernel's metadata, in the order of a cell; it ends with the waves that fit on a SIMD.

A thread's vector registers, the vector registers that only matrix instructions use (part of the former; additional on
gfx908), its scalar registers, and, in bytes, a block's static LDS and a thread's scratch.
"""
EXTRACT = "; ".join(
    (
        "/ -- Begin function /p",
        "/_ZL14no_device_code.*@rel32@lo/p",
        "/^; Occupancy:/p",
        *(rf"/^  [- ] \.{key}:/p" for key in ("name", *KEYS)),
    )
)
"""sed's script, which selects the lines that `read_assembly` needs from the many megabytes that clang writes."""
LINE = re.compile(
    r".* Begin function (?P<begin>\S+)|; Occupancy: (?P<waves>\d+)|  [- ] \.(?P<key>\w+): +(?P<value>\S+)"
)


def read_assembly(text: str) -> Iterator[tuple[str, str]]:
    """Each kernel's mangled name, and its cell in the table: `-` if its only code is NO_DEVICE_CODE."""
    name, waves, without, kernel = "", dict[str, int](), set[str](), dict[str, str]()
    for line in text.splitlines():
        if "no_device_code" in line and "@rel32" in line:
            without.add(name)
        elif match := LINE.match(line):
            if match["begin"]:
                name = match["begin"]
            elif match["waves"]:
                waves[name] = int(match["waves"])
            else:
                kernel[match["key"]] = match["value"]
        if line.lstrip(" -").startswith(".vgpr_count:"):  # a kernel's last key, because keys are sorted
            mangled = kernel.pop("name")
            figures = [kernel.pop(key, "0") for key in KEYS]
            yield mangled, NO_CODE if mangled in without else "/".join((*figures, str(waves[mangled])))
    if not waves:
        raise InputError("this assembly has no kernel")


def merge_amd(build_number: int, gfx: str, found: Mapping[str, str], path: Path) -> str:
    """The text of AMD's table with the column of a build and an architecture (`11549/gfx1100`) added or replaced."""
    column = f"{build_number}/{gfx}"
    rows = {row["kernel"]: row for row in csv.DictReader(io.StringIO(path.read_text() if path.exists() else ""))}
    names = sorted({name for row in rows.values() for name in row if name not in ("kernel", column)} | {column})
    for kernel in {*rows, *found}:
        row = rows.setdefault(kernel, {"kernel": kernel})
        row[column] = found.get(kernel, "")
    text = io.StringIO()
    writer = csv.DictWriter(text, ["kernel", *names], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows[kernel] for kernel in sorted(rows))
    return text.getvalue()
