"""A table that shows how many of the same mutants each of several suites kills, from a file of verdicts."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fattn_probe.base.files import read_text
from fattn_probe.lab.detect.counts import Equivalent, argument
from fattn_probe.lab.detect.mutants import Mutant
from fattn_probe.lab.detect.verdicts import MutantVerdict, documents
from fattn_probe.llama.cxx.functions import functions
from fattn_probe.llama.cxx.tokens import draft_of, tokenize
from fattn_probe.llama.source import Tree
from fattn_probe.llama.source.features import CUDA

HELD_OUT, HISTORY = "held out", ", with a history"
OF_UPSTREAM = "FLASH_ATTN_EXT("


def held_out(digest: str) -> bool:
    """Whether a fault is in the half that is not used to choose a suite's cases."""
    return int(digest, 16) % 2 == 1


def mutants_of(path: Path) -> Iterator[Mutant]:
    """The mutants in a file of verdicts; a mutant appears once per verdict."""
    for item in documents(path):
        yield Mutant(**item["mutant"])


def killers_as_text(path: Path, tree: Tree) -> str:
    """`killers.csv`, from a file of verdicts: the cases that detected faults, by function and line of the release."""
    starts, counted = dict[tuple[str, str], int](), Counter[tuple[str, ...]]()
    for item in documents(path):
        mutant = Mutant(**item["mutant"])
        if item["fate"] != "killed" or not item["case"] or item["case"].startswith(OF_UPSTREAM):
            continue
        if (mutant.file, mutant.function) not in starts:
            draft = draft_of(tokenize(read_text(tree.root / CUDA / mutant.file, "the source")))
            starts |= {(mutant.file, one.name): draft.lines[one.at] for one in functions(draft)}
        line = mutant.line - starts[mutant.file, mutant.function]
        counted[mutant.file, mutant.function, str(line), item["on"], item["case"]] += 1
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["file", "function", "line", "on", "case", "faults"])
    writer.writerows((*key, number) for key, number in sorted(counted.items()))
    return out.getvalue()


@dataclass(frozen=True)
class Column:
    """A suite: the digests of the mutants that its cases kill, and of those that all of its cases have tried.

    `elsewhere` are those whose correct outputs come from a different kernel or grid, if a history shows this.
    """

    name: str
    killed: frozenset[str]
    settled: frozenset[str]
    elsewhere: frozenset[str] = frozenset()

    @classmethod
    def of(cls, name: str, verdicts: Iterable[MutantVerdict], *, history: bool) -> "Column":
        """A suite's column, from the verdicts valid for it; with `history`, its runs are compared with earlier runs."""
        found = list(verdicts)
        killed = frozenset(item.mutant.digest for item in found if item.by)
        elsewhere = frozenset(item.mutant.digest for item in found if item.changed and history)
        return cls(name, killed, frozenset(item.mutant.digest for item in found), elsewhere)

    def cell(self, digests: Sequence[str]) -> str:
        """`75.0 % (3)`, and the number of mutants that some cases have not tried and may kill."""
        if not digests:
            return "-"
        killed = sum(digest in self.killed for digest in digests)
        open_ = sum(digest not in self.settled | self.killed for digest in digests)
        return f"{100 * killed / len(digests):.1f} % ({killed})" + (f", {open_} open" if open_ else "")


def counted(
    mutants: Mapping[str, Mutant], columns: Iterable[Column], known: Sequence[Equivalent], sample: int = 0
) -> dict[str, Mutant]:
    """A sample of mutants (0: all) by digest, without those listed as equivalent unless a suite kills them."""
    killed = frozenset().union(*(column.killed for column in columns))
    chosen = sorted(mutants)[: sample or None]
    return {digest: mutants[digest] for digest in chosen if digest in killed or not argument(mutants[digest], known)}


def page(mutants: Mapping[str, Mutant], columns: Sequence[Column]) -> str:
    """The table: a row for each file, for all files, and for the faults not used to choose cases; a column per suite.

    If a suite has mutants that only a history shows, the last rows are for a run with a history.
    """
    files = sorted({mutant.file for mutant in mutants.values()})
    rows = [(f"`{file}`", [digest for digest, mutant in mutants.items() if mutant.file == file]) for file in files]
    wholes = [("all", list(mutants)), (HELD_OUT, [digest for digest in mutants if held_out(digest)])]
    names = " | ".join(column.name for column in columns)
    lines = [f"| mutants of | number | {names} |", "| --- |" + " --- |" * (len(columns) + 1)]
    tables = [(columns, [*rows, *wholes])]
    if any((column.elsewhere - column.killed) & mutants.keys() for column in columns):
        with_history = [replace(column, killed=column.killed | column.elsewhere) for column in columns]
        tables.append((with_history, [(f"{name}{HISTORY}", digests) for name, digests in wholes]))
    for chosen, some in tables:
        for name, digests in some:
            cells = " | ".join(column.cell(digests) for column in chosen)
            lines.append(f"| {name} | {len(digests)} | {cells} |")
    return "\n".join(lines) + "\n"
