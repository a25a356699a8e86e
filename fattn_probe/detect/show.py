"""Coverage as a table and as JSON, from which it can be read again."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.detect.counts import Coverage, Line, Share
from fattn_probe.detect.measure import Measured
from fattn_probe.detect.unreachable import refuted
from fattn_probe.errors import InputError
from fattn_probe.figures import number_of
from fattn_probe.files import read_text
from fattn_probe.launch.families import BY_KERNEL
from fattn_probe.tables import Table

MOST_BYTES = 1 << 30
WORST = 12  # ranges of lines in the terminal's list


def document(found: Sequence[Measured]) -> dict[str, Any]:
    """The coverage of suites for `--json`."""
    return {"suites": [one_document(item) for item in found]}


def one_document(item: Measured) -> dict[str, Any]:
    """The coverage of one suite."""
    coverage = item.coverage
    return {
        "suite": item.suite,
        "targets": list(item.targets),
        "cases": item.cases,
        "lost": list(item.lost),
        "files": [
            {
                "file": file,
                "lines": share_document(coverage.lines(file)),
                "branches": share_document(coverage.branches(file)),
                "never_executed": coverage.gaps(file),
                "one_sided": coverage.one_sided(file),
                "unreachable": [[number, coverage.unreachable[file, number]] for number in coverage.left_out(file)],
                "counts": [
                    [number, line.count, line.branches] for number, line in sorted(coverage.files[file].items())
                ],
            }
            for file in sorted(coverage.files)
        ],
        "not_compiled": coverage.not_compiled,
        "instances": [
            {"on": on, "file": file, "function": function, **share_document(share)}
            for (file, function, on), share in sorted(coverage.functions.items())
        ],
    }


def read(path: Path) -> list[Measured]:
    """The suites of a file of `coverage --json`; InputError if it is none."""
    text = read_text(path, "the coverage", MOST_BYTES)
    try:
        return [measured_of(item) for item in json.loads(text)["suites"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not what `fattn-probe coverage --json` prints: {error}") from error


def measured_of(document: Mapping[str, Any]) -> Measured:
    """The coverage of one suite, from its part of a document."""
    coverage = Coverage()
    for file in document["files"]:
        coverage.files[file["file"]] = {
            number: Line(count, tuple(branches)) for number, count, branches in file["counts"]
        }
    for item in document["instances"]:
        coverage.functions[item["file"], item["function"], item["on"]] = Share(item["executed"], item["of"])
    targets, lost = (tuple(map(str, document[name])) for name in ("targets", "lost"))
    return Measured(str(document["suite"]), coverage, targets, int(document["cases"]), lost)


def share_document(share: Share) -> dict[str, int]:
    """A share for JSON."""
    return {"executed": share.done, "of": share.total}


def percent(share: Share) -> str:
    """`97.5 % of 812`; only a full share is 100 %, and one of nothing is `none`."""
    if not share.total:
        return "none"
    shown = min(share.percent, 99.9) if share.done < share.total else 100.0
    return f"{shown:.3g} % of {share.total}"


def render(found: Sequence[Measured]) -> RenderableType:
    """A row per file, columns per suite; then the longest ranges that no suite executed."""
    columns = [word for item in found for word in (f"{item.suite}: lines", "branches")]
    rows = tuple((file, *cells_of(found, file)) for file in files_of(found))
    notes = [Text(said) for item in found for said in summary(item)]
    worst = list(islice(longest(found[0]), WORST))
    heading = [Text(f"\nnever executed by {found[0].suite}, longest first:")] if worst else []
    return Group(
        Table(("file", *columns), rows),
        Text(),
        Table(instance_columns(found), tuple(instance_rows(found))),
        Text(),
        *notes,
        *heading,
        *(Text(f"  {line}") for line in worst),
    )


def counted(share: Share) -> str:
    """`3 of 24`."""
    return f"{share.done} of {share.total}"


def files_of(found: Sequence[Measured]) -> list[str]:
    """The files of all suites, also those of which no instance was compiled."""
    return sorted({file for item in found for file in (*item.coverage.files, *item.coverage.not_compiled)})


def cells_of(found: Sequence[Measured], file: str) -> Iterator[str]:
    """The executed lines and the outcomes of branches of a file, suite by suite."""
    for item in found:
        if file in item.coverage.not_compiled:
            yield from ("no instance compiled", "")
        else:
            yield percent(item.coverage.lines(file))
            yield percent(item.coverage.branches(file))


def instance_columns(found: Sequence[Measured]) -> tuple[str, ...]:
    """The columns of the table of instances."""
    return ("kernel", "on", *(word for item in found for word in (f"{item.suite}: instances executed", "their lines")))


def instance_rows(found: Sequence[Measured]) -> Iterator[tuple[str, ...]]:
    """The instances of each kernel on each GPU, suite by suite: executed of compiled, and the share of their lines."""
    for kernel in BY_KERNEL:
        for on in dict.fromkeys(target for item in found for target in item.targets):
            shares = [(item.coverage.instances(kernel, on), item.coverage.lines_of(kernel, on)) for item in found]
            if any(instances.total for instances, _ in shares):
                yield (kernel, on, *(word for some, lines in shares for word in (counted(some), percent(lines))))


def summary(item: Measured) -> Iterator[str]:
    """How many cases ran where, and which did not."""
    yield f"{item.suite}: {number_of(item.cases, 'case')} on {', '.join(item.targets)}"
    yield from (f"  not counted: {reason.splitlines()[0]}" for reason in item.lost[:3])
    if len(item.lost) > 3:
        yield f"  not counted: {len(item.lost) - 3} more"
    if left := sum(len(item.coverage.left_out(file)) for file in item.coverage.files):
        yield f"  left out: {left} lines that no NVIDIA GPU reaches, wholly or in part; --html and --json say why"
    for file, line in refuted(item.coverage):
        yield f"  {file}:{line} was executed, but unreachable.yaml says that it cannot be"


def longest(item: Measured) -> Iterator[str]:
    """The ranges of lines that were never executed, those with most lines of code first."""
    gaps = [(file, first, last) for file in item.coverage.files for first, last in item.coverage.gaps(file)]
    lines = item.coverage.files
    size = {gap: sum(gap[1] <= number <= gap[2] for number in lines[gap[0]]) for gap in gaps}
    for file, first, last in sorted(gaps, key=lambda gap: (-size[gap], gap)):
        count = size[file, first, last]
        yield f"{file}:{first}" + (f"-{last}" if last > first else "") + f" ({number_of(count, 'line')})"
