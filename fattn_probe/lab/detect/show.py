"""Coverage and the fates of mutants as tables and as JSON; the JSON of coverage can be read back."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType, group
from rich.text import Text

from fattn_probe.base.errors import InputError
from fattn_probe.base.figures import number_of
from fattn_probe.base.files import read_text
from fattn_probe.base.tables import Table
from fattn_probe.daily.inspect.view.page import environment
from fattn_probe.lab.detect.counts import (
    Equivalent,
    LineCoverage,
    Share,
    SourceLine,
    argument,
    equivalents,
    name_of,
    refuted,
)
from fattn_probe.lab.detect.measure import Measured
from fattn_probe.lab.detect.mutate import Mutated
from fattn_probe.lab.detect.verdicts import MutantVerdict
from fattn_probe.llama.launch.families import BY_KERNEL
from fattn_probe.llama.source import Tree
from fattn_probe.llama.source.features import CUDA

MOST_BYTES = 1 << 30
WORST = 12  # ranges of lines in the terminal's list


def document(found: Sequence[Measured]) -> dict[str, Any]:
    """The coverage of suites for `--json`."""
    return {
        "suites": [
            {
                "suite": item.suite,
                "targets": list(item.targets),
                "cases": item.cases,
                "lost": list(item.lost),
                "files": [file_document(item.coverage, file) for file in sorted(item.coverage.files)],
                "not_compiled": item.coverage.not_compiled,
                "instances": [
                    {"on": on, "file": file, "function": function, "executed": share.done, "of": share.total}
                    for (file, function, on), share in sorted(item.coverage.functions.items())
                ],
            }
            for item in found
        ]
    }


def file_document(coverage: LineCoverage, file: str) -> dict[str, Any]:
    """The coverage of one file."""
    lines, branches = coverage.lines(file), coverage.branches(file)
    return {
        "file": file,
        "lines": {"executed": lines.done, "of": lines.total},
        "branches": {"executed": branches.done, "of": branches.total},
        "never_executed": coverage.gaps(file),
        "one_sided": coverage.one_sided(file),
        "unreachable": [[number, coverage.unreachable[file, number]] for number in coverage.left_out(file)],
        "counts": [[number, line.count, line.branches] for number, line in sorted(coverage.files[file].items())],
    }


def read(path: Path) -> list[Measured]:
    """The suites in a file from `coverage --json`; InputError for any other file."""
    text, found = read_text(path, "the coverage", MOST_BYTES), []
    try:
        for document in json.loads(text)["suites"]:
            coverage = LineCoverage()
            for file in document["files"]:
                coverage.files[file["file"]] = {
                    number: SourceLine(count, tuple(branches)) for number, count, branches in file["counts"]
                }
            for item in document["instances"]:
                coverage.functions[item["file"], item["function"], item["on"]] = Share(item["executed"], item["of"])
            targets, lost = (tuple(map(str, document[name])) for name in ("targets", "lost"))
            found.append(Measured(str(document["suite"]), coverage, targets, int(document["cases"]), lost))
        return found
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not what `fattn-probe coverage --json` prints: {error}") from error


def render(found: Sequence[Measured]) -> RenderableType:
    """A row per file, columns per suite; then the longest ranges that the first suite did not execute."""
    columns = [word for item in found for word in (f"{item.suite}: lines", "branches")]
    rows = tuple((file, *cells_of(found, file)) for file in files_of(found))
    notes = [Text(said) for item in found for said in summary(item)]
    coverage = found[0].coverage
    gaps = [(file, first, last) for file in coverage.files for first, last in coverage.gaps(file)]
    size = {gap: sum(gap[1] <= number <= gap[2] for number in coverage.files[gap[0]]) for gap in gaps}
    if gaps:
        notes.append(Text(f"\nnever executed by {found[0].suite}, longest first:"))
    for gap in sorted(gaps, key=lambda gap: (-size[gap], gap))[:WORST]:
        file, first, last = gap
        lines = f"{first}-{last}" if last > first else f"{first}"
        notes.append(Text(f"  {file}:{lines} ({number_of(size[gap], 'line')})"))
    instances = Table(instance_columns(found), tuple(instance_rows(found)))
    return Group(Table(("file", *columns), rows), Text(), instances, Text(), *notes)


def files_of(found: Sequence[Measured]) -> list[str]:
    """The files of all suites, including those without a compiled instance."""
    return sorted({file for item in found for file in (*item.coverage.files, *item.coverage.not_compiled)})


def cells_of(found: Sequence[Measured], file: str) -> Iterator[str]:
    """The executed lines and the branch outcomes of a file, suite by suite."""
    for item in found:
        if file in item.coverage.not_compiled:
            yield from ("no instance compiled", "")
        else:
            yield from (str(item.coverage.lines(file)), str(item.coverage.branches(file)))


def instance_columns(found: Sequence[Measured]) -> tuple[str, ...]:
    """The columns of the table of instances."""
    return ("kernel", "on", *(word for item in found for word in (f"{item.suite}: instances executed", "their lines")))


def instance_rows(found: Sequence[Measured]) -> Iterator[tuple[str, ...]]:
    """The instances of each kernel on each GPU, by suite: executed and compiled ones, and the share of lines."""
    for kernel in BY_KERNEL:
        for on in dict.fromkeys(target for item in found for target in item.targets):
            shares = [item.coverage.of_kernel(kernel, on) for item in found]
            if any(some.total for some, _ in shares):
                cells = (word for some, lines in shares for word in (f"{some.done} of {some.total}", str(lines)))
                yield (kernel, on, *cells)


def summary(item: Measured) -> Iterator[str]:
    """The number of cases that ran on each target, and the cases that did not run."""
    yield f"{item.suite}: {number_of(item.cases, 'case')} on {', '.join(item.targets)}"
    yield from (f"  not counted: {reason.splitlines()[0]}" for reason in item.lost[:3])
    if len(item.lost) > 3:
        yield f"  not counted: {len(item.lost) - 3} more"
    if left := sum(len(item.coverage.left_out(file)) for file in item.coverage.files):
        yield f"  left out: {left} lines that cannot be reached, or only in part; --html and --json say why"
    for file, line in refuted(item.coverage):
        yield f"  {file}:{line} was executed, but unreachable.yaml says that it cannot be"


def page(found: Sequence[Measured], tree: Tree) -> str:
    """The page: a row per file with the shares of each suite, then the source with the counts of the first suite."""
    files = [
        {
            "name": name,
            "shares": list(cells_of(found, name)),
            "lines": list(annotated(tree.root / CUDA / name, name, found[0].coverage)),
        }
        for name in files_of(found)
    ]
    words = {
        "title": f"Code that {', '.join(item.suite for item in found)} execute{'s' * (len(found) == 1)}",
        "about": f"{tree.spec}. " + "; ".join(next(summary(item)) for item in found),
        "suites": [item.suite for item in found],
        "files": files,
        "instance_columns": instance_columns(found),
        "instance_rows": list(instance_rows(found)),
        "instances": [
            (function, on, str(share) if share.done else "never executed")
            for (_, function, on), share in sorted(found[0].coverage.functions.items())
            if name_of(function) in BY_KERNEL
        ],
    }
    return environment("fattn_probe.lab.detect").get_template("coverage.html.j2").render(words)


def annotated(path: Path, file: str, coverage: LineCoverage) -> Iterator[dict[str, Any]]:
    """Each line of a source file with its count, its kind for the colours, and its outcomes or why it is left out."""
    lines, left_out = coverage.files.get(file, {}), set(coverage.left_out(file))
    for number, text in enumerate(path.read_text(errors="replace").splitlines(), 1):
        line, count, kind, said = lines.get(number), "", "", ""
        if line is not None:
            count = short(line.count)
            kind = "never" if not line.count else "partly" if line.taken < len(line.branches) else ""
            said = "outcomes: " + ", ".join(map(short, line.branches)) if line.branches else ""
        if number in left_out:
            kind, said = "argued", f"left out: {coverage.unreachable[file, number]}"
        yield {"text": text, "count": count, "kind": kind, "said": said}


def short(count: int) -> str:
    """`812`, `15k`, `3M`: the size of a count."""
    for unit in ("", "k", "M", "G"):
        if count < 1000:
            return f"{count}{unit}"
        count //= 1000
    return f"{count}T"


EQUIVALENT = "equivalent"
FATES = ("killed", "survived", "another kernel", "not reached", EQUIVALENT)
MOST = 20  # survivors in the terminal's list
MOST_CASES = 3


def mutation_document(found: Mutated) -> dict[str, Any]:
    """The fates for `--json`."""
    known = equivalents(amd=found.amd)
    return {
        "on": list(found.on),
        "cases": found.cases,
        "failing": list(found.failing),
        "other_bits": None if found.other_bits is None else list(found.other_bits),
        "compiled": found.compiled,
        "left": found.left,
        "counts": dict(Counter(fate_of(verdict, known) for verdict in found.verdicts)),
        "mutants": [
            verdict.document()
            | {"fate": fate_of(verdict, known), "because": argument(verdict.mutant, known)}
            | {"ran": list(found.ran[verdict.mutant.digest]) if verdict.mutant.digest in found.ran else None}
            for verdict in found.verdicts
        ],
    }


def fate_of(verdict: MutantVerdict, known: Sequence[Equivalent]) -> str:
    """A mutant's fate; one that no case killed may be equivalent."""
    return EQUIVALENT if not verdict.by and argument(verdict.mutant, known) else verdict.fate


@group()
def render_mutation(found: Mutated) -> Iterator[RenderableType]:
    """The fates by file and by kind, the kinds of kills, and the survivors."""
    words = f"{number_of(len(found.verdicts), 'mutant')}, {number_of(found.cases, 'case')} on {', '.join(found.on)}"
    yield Text(words + (f"; {found.left} not tried yet: repeat the command to continue\n" if found.left else "\n"))
    known = equivalents(amd=found.amd)
    fates = [(verdict, fate_of(verdict, known)) for verdict in found.verdicts]
    yield table("file", [(verdict.mutant.file, fate) for verdict, fate in fates])
    yield Text()
    yield table("fault", [(verdict.mutant.operator, fate) for verdict, fate in fates])
    for name, words in (("by", "killed by"), ("on", "killed on")):
        counts = Counter(getattr(verdict, name) for verdict in found.verdicts if verdict.by)
        said = ", ".join(f"{word} {count}" for word, count in counts.most_common())
        yield Text(f"\n{words}: {said or 'nothing'}")
    for item in found.failing:
        yield Text(f"fails without a mutant, so it kills none: {item}")
    if found.other_bits:
        yield Text(f"the switches alone change the bits of {len(found.other_bits)} of {found.cases} cases")
    for verdict in found.verdicts:
        if verdict.by and argument(verdict.mutant, known):
            yield Text(f"killed, although listed as equivalent: {verdict.mutant}, by {verdict.case}")
    survivors = [verdict for verdict, fate in fates if fate == "survived"]
    for verdict in sorted(survivors, key=lambda verdict: (verdict.mutant.file, verdict.mutant.line))[:MOST]:
        words = f" ({verdict.said})" if verdict.said else ""
        yield Text(f"survived {number_of(verdict.cases, 'case')}: {verdict.mutant}{words}")
        if cases := found.ran.get(verdict.mutant.digest, ()):
            more = f" and {len(cases) - MOST_CASES} more" if len(cases) > MOST_CASES else ""
            yield Text(f"  executed by {', '.join(cases[:MOST_CASES])}{more}", "dim")
    if len(survivors) > MOST:
        yield Text(f"and {len(survivors) - MOST} more survived; --json lists them")


def table(name: str, pairs: Sequence[tuple[str, str]]) -> Table:
    """The number of mutants by fate, and the share of the non-equivalent ones that is killed; a row for each group."""
    rows = []
    for part in (*sorted({part for part, _ in pairs}), "all"):
        counts = Counter(fate for own, fate in pairs if part in (own, "all"))
        reached = sum(counts[fate] for fate in FATES if fate not in ("not reached", EQUIVALENT))
        numbers = reached, reached + counts["not reached"]
        shares = (f"{100 * counts['killed'] / number:.0f} %" if number else "-" for number in numbers)
        rows.append((part, *(str(counts[fate]) for fate in FATES), *shares))
    return Table((name, *FATES, "killed of reached", "of all"), tuple(rows))
