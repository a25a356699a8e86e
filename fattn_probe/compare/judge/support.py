"""Which ops a release of llama.cpp supports on which GPUs, known without a run: a case that it no longer takes fails.

`support.csv` has a row for each op of the shipped scenarios and suites, made by `scripts/support`. Other ops are not
judged.
"""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from fattn_probe.device import load_devices
from fattn_probe.op import Op
from fattn_probe.run.kernels_by_op import op_digest

TABLE = "support.csv"
LOST = "support lost"
"""How the reason of a case begins that a release no longer supports."""
EVERY, NONE = "yes", "no"


@dataclass
class Known:
    """What releases say about one op, which `case` has: by build number, the compute capabilities that support it."""

    case: str
    on: dict[int, frozenset[str]] = field(default_factory=dict)


Support = dict[str, Known]
"""By `op_digest`."""


def support_of(text: str, every: frozenset[str]) -> Support:
    """Read a table; `every` is what `yes` stands for."""
    words = {EVERY: every, NONE: frozenset[str]()}
    found: Support = {}
    for row in csv.DictReader(io.StringIO(text)):
        builds = {int(name): cell for name, cell in row.items() if name.isdecimal() and cell}
        on = {number: words.get(cell, frozenset(cell.split())) for number, cell in builds.items()}
        found[row["op"]] = Known(row["case"], on)
    return found


def text_of(support: Mapping[str, Known], every: frozenset[str]) -> str:
    """The table as text, its rows in order of the cases' names."""
    numbers = sorted({number for known in support.values() for number in known.on})
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["op", "case", *numbers])
    for op, known in sorted(support.items(), key=lambda item: (item[1].case, item[0])):
        writer.writerow([op, known.case, *(_cell(known.on.get(number), every) for number in numbers)])
    return out.getvalue()


def _cell(on: frozenset[str] | None, every: frozenset[str]) -> str:
    if on is None:
        return ""
    return EVERY if on == every else " ".join(sorted(on, key=float)) or NONE


def supporting(op: Op, cc: str, build_number: str, support: Mapping[str, Known] | None = None) -> int | None:
    """The last release up to `build_number` that the table knows about this op, if it supports it on this GPU.

    None if that release refuses it or the table has nothing. A source of unknown number (`?`) is taken for newer than
    all releases.
    """
    support = shipped() if support is None else support
    last = last_known(op, build_number, support)
    return last if last is not None and cc in support[op_digest(op)].on[last] else None


def last_known(op: Op, build_number: str, support: Mapping[str, Known] | None = None) -> int | None:
    """The last release up to `build_number` that the table knows about this op; None if it has nothing."""
    known = (shipped() if support is None else support).get(op_digest(op))
    if known is None:
        return None
    limit = int(build_number) if build_number.isdecimal() else max(known.on, default=0)
    return max((number for number in known.on if number <= limit), default=None)


@cache
def shipped() -> Support:
    """The table of this package."""
    return support_of((files(__package__) / TABLE).read_text(encoding="utf-8"), capabilities())


def capabilities() -> frozenset[str]:
    """The compute capabilities of the catalogue."""
    return frozenset(f"{device.major}.{device.minor}" for device in load_devices().values())
