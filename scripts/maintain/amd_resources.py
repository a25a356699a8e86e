"""Read the resources of AMD kernels from clang's assembly."""

import re
from collections.abc import Iterator

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device.resources import AmdResources

KEYS = ("vgpr_count", "agpr_count", "sgpr_count", "group_segment_fixed_size", "private_segment_fixed_size")
"""The figures in a kernel's metadata, in the order of `AmdResources`."""
EXTRACT = "; ".join(
    (
        "/ -- Begin function /p",
        "/_ZL14no_device_code.*@rel32@lo/p",
        "/^; Occupancy:/p",
        *(rf"/^  [- ] \.{key}:/p" for key in ("name", *KEYS)),
    )
)
"""sed's script for the lines that `read_assembly` needs, of the many megabytes that clang writes."""
LINE = re.compile(
    r".* Begin function (?P<begin>\S+)|; Occupancy: (?P<waves>\d+)|  [- ] \.(?P<key>\w+): +(?P<value>\S+)"
)


def read_assembly(text: str) -> Iterator[tuple[str, AmdResources | None]]:
    """Each kernel's mangled name and resources; None if its only code is NO_DEVICE_CODE."""
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
        if line.lstrip(" -").startswith(".vgpr_count:"):  # the last key of a kernel, as they are sorted
            mangled = kernel.pop("name")
            figures = [int(kernel.pop(key, 0)) for key in KEYS]
            yield mangled, None if mangled in without else AmdResources(*(*figures, waves[mangled]))
    if not waves:
        raise InputError("this assembly has no kernel")
