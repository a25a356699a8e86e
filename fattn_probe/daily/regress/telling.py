"""The cases of the shipped suite that are most likely to show the effect of a changed source.

`killers.csv` lists, for each function of the default release, the cases of `quick` that detected faults planted in it,
which proves that they reach it. `scripts/detection killers` generates the file from the verdicts on mutants.
"""

import csv
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from importlib.resources import files
from itertools import islice, zip_longest
from typing import Any, NamedTuple

from rich.text import Text

from fattn_probe.base.figures import first_of, number_of
from fattn_probe.cases import shipped
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.regress.entries import Given, entries_on_targets, own_cases
from fattn_probe.daily.regress.suite import Entry, load_suite
from fattn_probe.llama.cxx.functions import functions
from fattn_probe.llama.cxx.tokens import draft_of, tokenize
from fattn_probe.llama.launch.architecture import arch_number, tile_configuration
from fattn_probe.llama.launch.constants import Constants, configurations, known_constants
from fattn_probe.llama.launch.families import BY_CASE, BY_KERNEL, FAMILIES
from fattn_probe.llama.source import Tree
from fattn_probe.llama.source.features import CUDA
from fattn_probe.llama.source.git import attention_files
from fattn_probe.machine.run.base import Base
from fattn_probe.machine.run.session import RunOptions
from fattn_probe.verdict.judge.judgement import Judgement
from fattn_probe.verdict.judge.origin import Code
from fattn_probe.verdict.judge.support import BETWEEN, shipped_choices

TABLE, SUITE = "killers.csv", "quick"
MOST_LISTED, MOST_RUN = 8, 4
Name = tuple[str, str]
"""An entry with its target, such as `few-sms on sim:h200-5`, and the name of a case."""
Row = tuple[str, str, tuple[int, ...]]
"""A kernel family, the suffix of its configuration function, and a row's DKQ, DV and, for mma, `ncols`."""
NEAR, FAR = 3, 1000
"""A planted fault NEAR lines from a change has a quarter of its weight. FAR: its weight elsewhere in a changed file."""


class Killer(NamedTuple):
    """A case, and the number of planted faults that it detected on a line (counted from the function's start)."""

    file: str
    function: str
    line: int
    on: str
    case: str
    faults: int


@dataclass(frozen=True)
class ChangedFunction:
    """The changed lines in one function of a file, or outside all functions; `start` is the line of its name."""

    file: str
    function: str
    start: int
    lines: tuple[int, ...]

    def __str__(self) -> str:
        place = f"{self.file}:{self.lines[0]}"
        return f"{self.function} ({place})" if self.function else place


@dataclass(frozen=True)
class Telling:
    """The changed functions, and the cases that detected faults planted in them, most telling first.

    `noticed` counts the detected faults by entry and case. `configured` are cases whose kernels use a changed row of a
    configuration function, alternating between these rows; no case uses the `untried` rows. `others` are cases that
    detected faults elsewhere in the changed files, or in any attention file; they may miss the changed lines.
    `kernels`: the changed files' families.
    """

    base: str
    changed: tuple[ChangedFunction, ...]
    noticed: Mapping[Name, int]
    configured: tuple[Name, ...]
    untried: tuple[str, ...]
    others: tuple[Name, ...]
    kernels: tuple[str, ...]

    @property
    def reaching(self) -> tuple[Name, ...]:
        """The cases that reach the changed lines, alternately from `configured` and `noticed`."""
        by_turns = zip_longest(self.configured, self.noticed)
        return tuple(dict.fromkeys(name for both in by_turns for name in both if name))

    def lines(self, rows: Sequence[Judgement]) -> Iterator[Text]:
        """Describe the functions and cases, and the judged cases that launch no kernel in the changed files."""
        yield Text(f"changed since {self.base}: {listed(self.changed)}", "bold")
        ran = {name: any(row.case == name[1] and name[0].endswith(row.on) for row in rows) for name in self.reaching}
        faults = number_of(sum(self.noticed.values()), "fault")
        for names, said in (
            (self.configured, "launch a kernel with a changed configuration"),
            (tuple(self.noticed), f"detected {faults} planted in these functions and so reach them"),
        ):
            cases, count = number_of(len(names), "shipped case"), sum(ran[name] for name in names)
            if names:
                yield Text(f"{cases} {said} ({count} ran): {listed([f'{case} ({on})' for on, case in names])}")
        if self.untried:
            said = f"no shipped case launches a kernel with the changed configuration {listed(self.untried)}"
            yield Text(f"{said}: name a scenario that does", "yellow")
        if not self.reaching:
            kernels = f"{' and '.join(self.kernels)} kernels"
            yield Text(f"no shipped case is known to reach these lines; the lines affect {kernels}", "yellow")
        for row in rows:
            own = {BY_KERNEL[launch.kernel].case for launch in row.launches if launch.kernel in BY_KERNEL}
            if own and own.isdisjoint(self.kernels):
                yield Text(f"{row.case} on {row.on} launches no kernel in the changed files", "yellow")

    def document(self) -> dict[str, Any]:
        """The JSON document: see `docs/guide/compare.md`."""
        changed = [{"file": one.file, "function": one.function or None, "lines": one.lines} for one in self.changed]
        noticed = [{"on": on, "case": case, "faults": faults} for (on, case), faults in self.noticed.items()]
        document = {"base": self.base, "changed": changed, "kernels": self.kernels, "noticed": noticed}
        return document | {
            "untried": self.untried,
            "configured": [{"on": on, "case": case} for on, case in self.configured],
        }

    def chosen(self) -> list[tuple[Entry, Target, Case]]:
        """The few most telling cases that the suite still has, then the smallest other case for each of their kernels.

        Each is from a different scenario. The cases that reach the changed functions come first. A smallest case needs
        no compilation, and its mask, layout or number of queries can show a change that a telling case hides.
        """
        found = suite_cases()
        first = dict[str, tuple[Entry, Target, Case]]()
        for name in dict.fromkeys((*self.reaching, *self.others)):
            if name in found and len(first) < MOST_RUN:
                first.setdefault(found[name][2].scenario, found[name])
        for kernels in [kernels_of(*one) for one in first.values()]:
            same = (one for one in found.values() if one[2].scenario not in first and kernels_of(*one) == kernels)
            first |= {one[2].scenario: one for one in islice(same, 1)}
        return list(first.values())


@cache
def suite_cases() -> dict[Name, tuple[Entry, Target, Case]]:
    """The cases of the shipped suite, with their entries and targets, smallest first."""
    path, found = shipped.find("suite", SUITE), dict[Name, tuple[Entry, Target, Case]]()
    for entry, target in entries_on_targets(load_suite(path), path.parent, Given()):
        on = f"{entry.name} on {target}" if entry.name else str(target)
        cases = [] if entry.check.order else own_cases(entry, path.parent)
        found |= {(on, case.name): (entry, target, case) for case in cases}
    return dict(sorted(found.items(), key=lambda one: one[1][2].op.sizes.flop))


def configured(tree: Tree, base: Code, new: Code) -> tuple[tuple[Name, ...], tuple[str, ...]]:
    """The cases whose kernels, in the default release, have a row of a configuration function that differs.

    They are sorted by size, but each of these rows has its turn on each GPU. Also returns the rows that no case has.
    """
    constants, rows = known_constants(tree), set[Row]()
    for family, length in (("mma", 3), ("tile", 2)):
        file = BY_CASE[family].file
        before, after = (configurations(code.text(file) or "") for code in (base, new))
        for suffix in before.keys() | after.keys():
            differing = set(before.get(suffix, ())) ^ set(after.get(suffix, ()))
            rows |= {(family, suffix, row[:length]) for row in differing}
    if constants is None or not rows:
        return (), ()
    groups = defaultdict[tuple[frozenset[Row], str], list[Name]](list)
    for name, some in suite_cases().items():
        _, on, kernels = kernels_of(*some)
        arch = arch_number(some[1].device.arch) if some[1].device else 0
        if own := rows.intersection(rows_of(kernels, arch, constants)):
            groups[frozenset(own), on].append(name)
    missing = sorted(rows.difference(*(own for own, _ in groups)))
    words = [f"{family} {','.join(map(str, sizes))} ({suffix})" for family, suffix, sizes in missing]
    return tuple(name for names in zip_longest(*groups.values()) for name in names if name), tuple(words)


def rows_of(kernels: str, arch: int, constants: Constants) -> Iterator[Row]:
    """The rows of the configuration functions that some kernels have; the name of a tile kernel has no `ncols`."""
    for family, values in (kernel.split(" ") for kernel in kernels.split(BETWEEN) if kernel):
        if family == "mma":
            DKQ, DV, ncols1, ncols2 = map(int, values.split(","))
            sizes = DKQ, DV, ncols1 * ncols2
            yield family, constants.mma_configuration(sizes, arch), sizes
        elif family == "tile":
            yield family, tile_configuration(arch), tuple(map(int, values.split(",")))


def kernels_of(entry: Entry, target: Target, case: Case) -> tuple[str, str, str]:
    """A case's entry and target, and the kernels that the default release launches for it."""
    cc = target.device.cc if target.device else ""
    return entry.name, str(target), shipped_choices().get(case.op.digest, {}).get(cc, "")


def listed(items: Sequence[object]) -> str:
    """List the first items, and the number of the others."""
    return first_of(items, MOST_LISTED) + (" (--json has all)" if len(items) > MOST_LISTED else "")


def changed_functions(base: Code, new: Code) -> Iterator[ChangedFunction]:
    """The places where the attention files of a source differ from those of its base, by function."""
    cuda = new.root / CUDA
    own = {path.relative_to(cuda).as_posix() for path in new.changed if path.is_relative_to(cuda)}
    for name in sorted({*attention_files(base.root / CUDA), *attention_files(cuda), *own}):
        before, after = base.text(name), new.text(name)
        if before == after or after is None:
            continue
        old, text = (before or "").splitlines(), after.splitlines()
        parts = SequenceMatcher(None, old, text, autojunk=False).get_opcodes()
        draft = draft_of(tokenize(after))
        ends = [*draft.lines, len(text)]
        spans = [(draft.lines[one.at], ends[one.stop], one.name) for one in functions(draft)]
        found = defaultdict[tuple[int, str], list[int]](list)
        for kind, _, _, start, stop in parts:
            for line in range(start + 1, max(stop, start + 1) + 1) if kind != "equal" else ():
                place = next(((first, called) for first, last, called in spans if first <= line <= last), (0, ""))
                found[place].append(line)
        yield from (ChangedFunction(name, called, first, tuple(lines)) for (first, called), lines in found.items())


def telling(options: RunOptions, base: Base) -> Telling | None:
    """The cases that reveal the most about a source's changes since its base; None if no attention file has changed."""
    if options.tree is None or base.options.tree is None or base.missing:
        return None
    old, new = Code(base.options.tree.root), Code(options.tree.root, options.patches)
    changed = tuple(changed_functions(old, new))
    if not changed:
        return None
    places = {(one.file, one.function): one for one in changed}
    names = [family.case for family in FAMILIES]
    shared = [one for one in changed if all(concerns(one.file, name) for name in names)]
    words = {word for one in shared for word in one.function.split("_")}  # vec_dot_fattn_vec_KQ_f16: a vec kernel
    near = tuple(f"fattn-{name}" for name in names if name in words) or tuple(one.file for one in changed)
    weights, faults, others = defaultdict[Name, float](float), Counter[Name](), Counter[Name]()
    for one in killers():
        if place := places.get((one.file, one.function)):
            away = min(abs(line - place.start - one.line) for line in place.lines)
            weights[one.on, one.case] += one.faults / (1 + away / NEAR) ** 2
            faults[one.on, one.case] += one.faults
        else:
            others[one.on, one.case] += one.faults * (FAR if one.file.startswith(near) else 1)
    kernels = tuple(name for name in names if any(concerns(one.file, name) for one in changed))
    noticed = {name: faults[name] for name in sorted(weights, key=lambda name: -weights[name])}
    rows, untried = configured(base.options.tree, old, new)
    return Telling(
        base.words, changed, noticed, rows, untried, tuple(name for name, _ in others.most_common()), kernels
    )


def concerns(file: str, family: str) -> bool:
    """Whether a file concerns a kernel family: it belongs to this family, or to none and so concerns every family."""
    name = file.rpartition("/")[2]
    own = [one.case for one in FAMILIES if name.startswith(f"fattn-{one.case}")]
    return family in own or not own


@cache
def killers() -> list[Killer]:
    """The rows of the shipped `killers.csv`."""
    rows = csv.reader((files(__package__) / TABLE).read_text(encoding="utf-8").splitlines()[1:])
    return [Killer(file, function, int(line), on, case, int(faults)) for file, function, line, on, case, faults in rows]
