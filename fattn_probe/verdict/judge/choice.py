"""The kernels that the default release launches for an op on each GPU, from a table.

`kernels.csv` has a row for each op of the shipped scenarios and suites, and a column for each compute capability, made
by `scripts/support`. Other ops and other releases are not judged.
"""

import csv
import io
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from fattn_probe.cases.op import Op
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.machine.run.kernels_by_op import op_digest
from fattn_probe.machine.run.required_kernels import kernel_key
from fattn_probe.verdict.judge.bitwise import Check, not_made

TABLE = "kernels.csv"
BETWEEN = "; "  # kernels of an op

Choices = dict[str, dict[str, str]]
"""For each `op_digest` and compute capability, the names of the kernel cases; and the columns `case` and `build`."""


def choices_of(text: str) -> Choices:
    """Read a table."""
    return {row.pop("op"): row for row in csv.DictReader(io.StringIO(text))}


@cache
def shipped() -> Choices:
    """The table of this package."""
    return choices_of((files(__package__) / TABLE).read_text(encoding="utf-8"))


def kernels(
    op: Op, cc: str, build_number: str, launches: Sequence[LaunchRecord], choices: Choices | None = None
) -> Check:
    """Check that a run launches the same kernels as the release does for an op on a GPU."""
    name, row = "kernels", (shipped() if choices is None else choices).get(op_digest(op), {})
    expected = row.get(cc, "")
    if not expected or row["build"] != build_number:
        return not_made(name, "the kernels of this release for this op on this GPU are not known")
    found = [f"{family} {','.join(values)}" for family, values in map(kernel_key, launches) if family]
    said = BETWEEN.join(dict.fromkeys(found))
    if said == expected:
        return Check(name, True, False, f"{said}, as known")
    words = f"it launches {said or 'no attention kernel'}, where b{build_number} has {expected}"
    return Check(name, False, True, words)
