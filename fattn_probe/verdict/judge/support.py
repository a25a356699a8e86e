"""A table of the ops that releases support on each GPU: a case fails if the source no longer accepts its op.

`support.csv` has a row for each op of the shipped scenarios and suites, made by `scripts/support`. Other ops are not
judged.
"""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files

from fattn_probe.cases.device import Target, load_devices
from fattn_probe.cases.op import Op
from fattn_probe.cases.scenario import Case
from fattn_probe.machine.run.kernels_by_op import op_digest
from fattn_probe.machine.run.required_kernels import dry_runs
from fattn_probe.machine.run.session import Session

TABLE = "support.csv"
LOST = "support lost"
"""The beginning of the reason for an op that is no longer supported."""
EVERY, NONE = "yes", "no"


@dataclass
class Supported:
    """The support for the op of `case`: for each build number, the compute capabilities that support it."""

    case: str
    on: dict[int, frozenset[str]] = field(default_factory=dict)


Support = dict[str, Supported]
"""By `op_digest`."""


def support_of(text: str, every: frozenset[str]) -> Support:
    """Read a table; `every` is what `yes` stands for."""
    words = {EVERY: every, NONE: frozenset[str]()}
    found: Support = {}
    for row in csv.DictReader(io.StringIO(text)):
        builds = {int(name): cell for name, cell in row.items() if name.isdecimal() and cell}
        on = {number: words.get(cell, frozenset(cell.split())) for number, cell in builds.items()}
        found[row["op"]] = Supported(row["case"], on)
    return found


def supporting(op: Op, cc: str, build_number: str, support: Mapping[str, Supported] | None = None) -> int | None:
    """The last release up to `build_number` that the table knows about this op, if it supports it on this GPU.

    None if that release refuses it or the table has nothing. A source without a number (`?`), such as a checkout
    without history, counts as newer than all releases.
    """
    support = shipped() if support is None else support
    last = last_known(op, build_number, support)
    return last if last is not None and cc in support[op_digest(op)].on[last] else None


def last_known(op: Op, build_number: str, support: Mapping[str, Supported] | None = None) -> int | None:
    """The last release up to `build_number` that the table knows about this op; None if it has nothing."""
    known = (shipped() if support is None else support).get(op_digest(op))
    if known is None:
        return None
    limit = int(build_number) if build_number.isdecimal() else max(known.on, default=0)
    return max((number for number in known.on if number <= limit), default=None)


def taken_without_patches(session: Session, case: Case, target: Target) -> bool:
    """Whether a session's source accepts an op without its patches, from a dry run on a simulated GPU."""
    options = session.options
    if not options.patches or options.build is not None or target.engine != "sim":
        return False
    unpatched = Session(replace(options, patches=()), session.progress)
    return any(dry_runs(unpatched, {case.name: case}, target).values())


@cache
def shipped() -> Support:
    """The table of this package."""
    return support_of((files(__package__) / TABLE).read_text(encoding="utf-8"), capabilities())


def capabilities() -> frozenset[str]:
    """The compute capabilities of the catalogue."""
    return frozenset(f"{device.major}.{device.minor}" for device in load_devices().values())
