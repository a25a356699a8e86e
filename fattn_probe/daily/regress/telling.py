"""The shipped cases that are most likely to show the effect of a changed source.

`killers.csv` lists, for each function of the default release, the cases of `quick` that detected faults planted in it,
which proves that they reach it. `scripts/detection killers` generates the file from the verdicts on mutants.
"""

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from importlib.resources import files
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from rich.text import Text

from fattn_probe.base.errors import BuildError
from fattn_probe.base.figures import first_of, number_of
from fattn_probe.base.files import scratch
from fattn_probe.base.host import cores
from fattn_probe.base.process import run
from fattn_probe.base.workers import threads
from fattn_probe.cases import shipped
from fattn_probe.cases.device import Target, arch_name, is_amd, load_devices
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.regress.entries import Given, entries_on_targets, entry_on, names_of, own_cases
from fattn_probe.daily.regress.suite import Entry, load_suite
from fattn_probe.llama.cxx.functions import functions
from fattn_probe.llama.cxx.includes import included
from fattn_probe.llama.cxx.tokens import draft_of, tokenize
from fattn_probe.llama.launch.architecture import AMD, arch_number, cuda_arch, generation_of, tile_configuration
from fattn_probe.llama.launch.constants import Constants, configurations, headers_of, known_constants
from fattn_probe.llama.launch.families import BY_CASE, FAMILIES
from fattn_probe.llama.source import Tree
from fattn_probe.llama.source.features import CUDA
from fattn_probe.llama.source.git import attention_files
from fattn_probe.machine.run.base import Base
from fattn_probe.machine.run.session import RunOptions
from fattn_probe.verdict.judge.judgement import Judgement
from fattn_probe.verdict.judge.origin import Code
from fattn_probe.verdict.judge.support import BETWEEN, shipped_choices

TABLE = "killers.csv"
SUITES = ("quick", "nightly-amd", "nightly")
"""The suites in which cases are sought: the later ones have the GPUs and kernels that `quick` lacks."""
MOST_LISTED, MOST_RUN = 8, 4
FEW_SMS = 8
"""On such GPUs, blocks work on parts of several tiles: one case shows faults at the seams, which no other may."""
Name = tuple[str, str]
"""An entry with its target, such as `few-sms on sim:h200-5`, and the name of a case."""
Row = tuple[str, str, tuple[int, ...]]
"""A kernel family, the suffix of its configuration function, and a row's DKQ, DV and `ncols`."""
SUFFIXES = ("ampere", "turing", "volta", "rdna", "cdna", "fp16", "fp32", "amd", "amd_rdna")
MARK, MARKED = "changed_line_{}_", re.compile(r"\bchanged_line_(\d+)_")
INCLUDED = re.compile(r"^[ \t]*#[ \t]*(?:include|pragma|error)\b.*", re.MULTILINE)
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

    `noticed` counts the detected faults by entry and case. `configured` are cases whose kernels use a changed row (one
    of `rows`) of a configuration function, alternating between these rows; no case uses the `untried` rows. `only` are
    the changed lines that not all architectures compile, with those that do; `compiling` are cases on such GPUs if none
    of `noticed` is. `others` are cases that detected faults elsewhere in the changed files, or in any attention file;
    they may miss the changed lines. `kernels`: the changed files' families.
    """

    base: str
    changed: tuple[ChangedFunction, ...]
    noticed: Mapping[Name, int]
    rows: frozenset[Row]
    configured: tuple[Name, ...]
    untried: frozenset[Row]
    only: Mapping[str, frozenset[str]]
    compiling: tuple[Name, ...]
    others: tuple[Name, ...]
    kernels: tuple[str, ...]

    @property
    def reaching(self) -> tuple[Name, ...]:
        """The cases that reach the changed lines, by turns from `configured`, `compiling` and `noticed`."""
        by_turns = zip_longest(self.configured, self.compiling, self.noticed)
        return tuple(dict.fromkeys(name for some in by_turns for name in some if name))

    def lines(self, rows: Sequence[Judgement]) -> Iterator[Text]:
        """Describe the functions and cases, and the judged cases that launch no kernel in the changed files."""
        yield Text(f"changed since {self.base}: {listed(self.changed)}", "bold")
        ran = {name: any(row.case == name[1] and name[0].endswith(row.on) for row in rows) for name in self.reaching}
        faults = number_of(sum(self.noticed.values()), "fault")
        for names, said in (
            (self.configured, "may launch a kernel with a changed configuration"),
            (self.compiling, "run on GPUs for which the changed lines are compiled"),
            (tuple(self.noticed), f"detected {faults} planted in these functions and so reach them"),
        ):
            cases, count = number_of(len(names), "shipped case"), sum(ran[name] for name in names)
            if names:
                yield Text(f"{cases} {said} ({count} ran): {listed([f'{case} ({on})' for on, case in names])}")
        if self.untried:
            said = f"no shipped case launches a kernel with the changed configuration {listed_rows(self.untried)}"
            yield Text(f"{said}: name a scenario that does", "yellow")
        left = self.rows.difference(self.untried, *map(launched_rows, rows))
        if rows and left and all(row.launches for row in rows):
            yield Text(
                f"no case that ran launched a kernel with the changed configuration {listed_rows(left)}", "yellow"
            )
        ran_on = {arch_of(row.on) for row in rows}
        for place, archs in self.only.items() if rows and None not in ran_on else ():
            if archs.isdisjoint(ran_on):
                said = f"{place} is compiled only for {listed(sorted(map(arch_name, archs)))}"
                yield Text(f"{said}: no case ran on such a GPU", "yellow")
        if not self.reaching:
            kernels = f"{' and '.join(self.kernels)} kernels"
            yield Text(f"no shipped case is known to reach these lines; the lines affect {kernels}", "yellow")
        launched = [{launch.family.case for launch in row.launches if launch.family} for row in rows]
        outside = [row for row, own in zip(rows, launched, strict=True) if own and own.isdisjoint(self.kernels)]
        if outside:
            said = f"{len(outside)} of {number_of(len(rows), 'case')} launched no kernel in the changed files"
            yield Text(f"{said}: {listed([f'{row.case} on {row.on}' for row in outside])}", "yellow")
        untried = [name for name in self.kernels if not any(name in own for own in launched)]
        if untried and any(not own.isdisjoint(self.kernels) for own in launched):
            said = f"the change affects {' and '.join(untried)} kernels too"
            yield Text(f"{said}: no case that ran launched one", "yellow")

    def left_out(self, pairs: Sequence[tuple[Entry, Target]], folder: Path) -> Iterator[str]:
        """The changes that the entries of a suite in this folder, on their targets, cannot show."""
        if any(target.engine == "cuda" for _, target in pairs):  # a real GPU, which may be any
            return
        names = {(entry_on(*pair), name) for pair in pairs for name in names_of(pair[0], folder)}
        for place, archs in self.only.items():
            if archs.isdisjoint(arch_of(on) for on, _ in names):
                yield f"no case runs on a GPU for which {place} is compiled ({listed(sorted(map(arch_name, archs)))})"
        if self.rows and names.isdisjoint(self.configured):
            yield f"no case is known to launch a kernel with the changed configuration {listed_rows(self.rows)}"

    def document(self) -> dict[str, Any]:
        """The JSON document: see `docs/guide/compare.md`."""
        changed = [{"file": one.file, "function": one.function or None, "lines": one.lines} for one in self.changed]
        noticed = [{"on": on, "case": case, "faults": faults} for (on, case), faults in self.noticed.items()]
        document = {"base": self.base, "changed": changed, "kernels": self.kernels, "noticed": noticed}
        names = {"configured": self.configured, "compiling": self.compiling}
        return document | {
            "untried": sorted(map(row_words, self.untried)),
            "only": {place: sorted(map(arch_name, archs)) for place, archs in self.only.items()},
            **{key: [{"on": on, "case": case} for on, case in some] for key, some in names.items()},
        }

    def chosen(self) -> list[tuple[Entry, Target, Case]]:
        """The few most telling cases that the suites have, then the smallest other case for each of their kernels.

        Each is from a different scenario. The cases that reach the changed functions come first; one case is on a GPU
        with FEW_SMS, if any is. A smallest case needs no compilation, and its mask, layout or number of queries can
        show a change that a telling case hides.
        """
        first, seams = dict[str, tuple[Entry, Target, Case]](), False
        for name in dict.fromkeys((*self.reaching, *self.others)):
            found = next((cases[name] for cases in map(suite_cases, SUITES) if name in cases), None)
            if found is None or found[2].scenario in first:
                continue
            device = found[1].device
            few = device is not None and device.multiProcessorCount <= FEW_SMS
            if len(first) < MOST_RUN or (few and not seams):
                first[found[2].scenario], seams = found, seams or few
            if len(first) >= MOST_RUN and seams:
                break
        for kernels in [kernels_of(*one) for one in first.values()]:
            cases = suite_cases(SUITES[0]).values()
            same = (one for one in cases if one[2].scenario not in first and kernels_of(*one) == kernels)
            first |= {one[2].scenario: one for one in islice(same, 1)}
        return list(first.values())


@cache
def suite_cases(suite: str) -> dict[Name, tuple[Entry, Target, Case]]:
    """The cases of a shipped suite, with their entries and targets, smallest first."""
    path, found = shipped.find("suite", suite), dict[Name, tuple[Entry, Target, Case]]()
    for entry, target in entries_on_targets(load_suite(path), path.parent, Given()):
        on = entry_on(entry, target)
        cases = [] if entry.check.order else own_cases(entry, path.parent)
        found |= {(on, case.name): (entry, target, case) for case in cases}
    return dict(sorted(found.items(), key=lambda one: one[1][2].op.sizes.flop))


def in_turns(groups: Mapping[Any, Sequence[Name]], most: int | None = None) -> list[Name]:
    """The first names of each group, then the second ones, and so on; at most `most` of a group."""
    parts = (names[:most] for names in groups.values())
    return [name for names in zip_longest(*parts) for name in names if name]


def changed_rows(base: Code, new: Code) -> frozenset[Row]:
    """The rows of the configuration functions that differ."""
    rows = set[Row]()
    for family in ("mma", "tile"):
        before, after = (
            configurations("\n".join(code.text(file) or "" for file in headers_of(code.root, BY_CASE[family].file)))
            for code in (base, new)
        )
        for suffix in before.keys() | after.keys():
            differing = set(before.get(suffix, ())) ^ set(after.get(suffix, ()))
            rows |= {(family, suffix, row[:3]) for row in differing}
    return frozenset(rows)


def configured(tree: Tree, rows: frozenset[Row]) -> tuple[list[Name], frozenset[Row]]:
    """The cases whose kernels, in the default release, have one of these rows; and the rows that no case has.

    They are sorted by size, but each row has its turn on each GPU. For rows that no case of `quick` has, there are a
    few cases of the other suites. The table of kernels lacks a tile kernel's `ncols`, so all suites are searched for
    tile kernels, and cases that should have a row's `ncols` come first.
    """
    constants, left, missing = known_constants(tree), rows, rows
    found, likely = list[Name](), set[Name]()
    if constants is None:
        return found, missing
    for suite in SUITES:
        groups = defaultdict[tuple[frozenset[Row], str], list[Name]](list)
        for name, some in suite_cases(suite).items() if left else ():
            _, on, kernels = kernels_of(*some)
            arch = arch_number(some[1].device.arch) if some[1].device else 0
            own = {row for one in kernels.split(BETWEEN) for row in left if has_row(one, arch, row, constants)}
            if own:
                groups[frozenset(own), on].append(name)
                if any(family == "mma" or sizes[2] == tile_columns(some[2]) for family, _, sizes in own):
                    likely.add(name)
        for names in groups.values():
            names.sort(key=lambda name: name not in likely)
        found += in_turns(groups, None if suite == SUITES[0] else MOST_RUN)
        missing = missing.difference(*(own for own, _ in groups))
        left = missing | {row for row in rows if row[0] == "tile"}
    return sorted(dict.fromkeys(found), key=lambda name: name not in likely), missing


def tile_columns(case: Case) -> int:
    """The probable `ncols` of a tile kernel: enough for all queries of the heads that share a tile."""
    sizes = case.op.sizes
    together = min(sizes.group & -sizes.group, 8)
    return min(64, max(2, 1 << (sizes.n_q * together - 1).bit_length()))


def has_row(kernel: str, arch: int, row: Row, constants: Constants) -> bool:
    """Whether a kernel has a row of a configuration function; `ncols` may differ if a tile kernel's name lacks it."""
    family, _, values = kernel.partition(" ")
    if family != row[0]:
        return False
    sizes = tuple(map(int, values.split(",")))
    if family == "tile":
        return row[1] == tile_configuration(arch) and row[2][: len(sizes)] == sizes
    DKQ, DV, ncols1, ncols2 = sizes
    sizes = DKQ, DV, ncols1 * ncols2
    return row[1:] == (constants.mma_configuration(sizes, arch), sizes)


def launched_rows(judgement: Judgement) -> Iterator[Row]:
    """The rows that kernels of a run have; those of every configuration function that may contain them."""
    arch = arch_of(judgement.on)
    number = arch_number(arch) if arch else 0
    for launch in judgement.launches:
        family = launch.family
        if family and family.case in ("mma", "tile"):
            own = tile_configuration(number) if family.case == "tile" else generation_of(number).configuration
            DKQ, DV, ncols1, ncols2 = map(int, launch.values[:4])
            for suffix in (own, *("ampere",) * (number < AMD)) if arch else SUFFIXES:
                yield family.case, suffix, (DKQ, DV, ncols1 * ncols2)


def row_words(row: Row) -> str:
    """A row in words: `mma 128,128,32 (rdna)`."""
    return f"{row[0]} {','.join(map(str, row[2]))} ({row[1]})"


def listed_rows(rows: Iterable[Row]) -> str:
    """List some rows in words."""
    return listed(list(map(row_words, sorted(rows))))


def arch_of(on: str) -> str | None:
    """The architecture of a simulated GPU, given by a target or a suite's entry with one; None if unknown."""
    device = load_devices(None).get(on.rpartition("sim:")[2])
    return device.arch if device else None


def architectures(new: Code, file: str, lines: Sequence[int]) -> dict[int, frozenset[str]]:
    """The architectures for which the preprocessor keeps a line of a file, if it does not keep it for all.

    The file is read after the headers that define the features of an architecture, and without any others.
    """
    text = (new.text(file) or "").splitlines()
    for line in sorted(lines, reverse=True):
        if not text[line - 2 : line - 1] or not text[line - 2].endswith("\\"):  # not within a macro
            text.insert(line - 1, MARK.format(line))
    archs = sorted({device.arch for device in load_devices(None).values()})
    with scratch() as folder, threads(cores()) as pool:

        def kept(arch: str) -> set[int]:
            amd = is_amd(arch)
            defined = (
                [f"__{arch}__", f"__{arch[:-2].upper()}__", "GGML_USE_HIP"]
                if amd
                else [f"__CUDA_ARCH__={cuda_arch(arch)}"]
            )
            headers = [new.text(name) or "" for name in ("vendors/hip.h",) * amd + ("common.cuh",)]
            source = folder / f"{arch}.cpp"
            source.write_text(INCLUDED.sub("", "\n".join([*headers, *text])), encoding="utf-8")
            words: list[str | Path] = ["g++", "-E", "-P", "-undef", "-w", *(f"-D{word}" for word in defined), source]
            return {int(number) for number in MARKED.findall(run(words).stdout)}

        try:
            by_arch = dict(zip(archs, pool.map(kept, archs), strict=True))
        except BuildError:  # no g++, or a text that it refuses
            return {}
    found = {line: frozenset(arch for arch in archs if line in by_arch[arch]) for line in lines}
    return {line: some for line, some in found.items() if 0 < len(some) < len(archs)}


def on_architectures(archs: frozenset[str], families: Sequence[str]) -> list[Name]:
    """The smallest case of each kernel of these families on GPUs of these architectures, from the first such suite."""
    for suite in SUITES:
        smallest = dict[tuple[str, str], Name]()
        for name, some in suite_cases(suite).items():
            _, on, kernels = kernels_of(*some)
            own = {kernel.partition(" ")[0] for kernel in kernels.split(BETWEEN)}
            if not own.isdisjoint(families) and arch_of(on) in archs and some[0].flavour == "release":
                smallest.setdefault((on, kernels), name)
        groups = defaultdict[str, list[Name]](list)
        for (on, _), name in smallest.items():
            groups[on].append(name)
        if groups:
            return in_turns(groups, MOST_RUN)
    return []


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
    only = dict[tuple[str, int], frozenset[str]]()
    for file in dict.fromkeys(one.file for one in changed):
        lines = [line for one in changed if one.file == file for line in one.lines]
        only |= {(file, line): archs for line, archs in architectures(new, file, lines).items()}
    places = {(one.file, one.function): one for one in changed}
    names = [family.case for family in FAMILIES]
    concerned = {one.file: families_of(options.tree.root / CUDA, one.file) for one in changed}
    shared = [one for one in changed if concerned[one.file] == names]
    words = {word for one in shared for word in one.function.split("_")}  # vec_dot_fattn_vec_KQ_f16: a vec kernel
    near = tuple(f"fattn-{name}" for name in names if name in words) or tuple(one.file for one in changed)
    weights, faults, others = defaultdict[Name, float](float), Counter[Name](), Counter[Name]()
    for one in killers():
        place, arch = places.get((one.file, one.function)), arch_of(one.on)
        lines = [line for line in place.lines if arch in only.get((one.file, line), (arch,))] if place else []
        if place and lines:
            away = min(abs(line - place.start - one.line) for line in lines)
            weights[one.on, one.case] += one.faults / (1 + away / NEAR) ** 2
            faults[one.on, one.case] += one.faults
        else:
            others[one.on, one.case] += one.faults * (FAR if one.file.startswith(near) else 1)
    kernels = tuple(name for name in names if any(name in found for found in concerned.values()))
    noticed = {name: faults[name] for name in sorted(weights, key=lambda name: -weights[name])}
    compiling = list[Name]()
    for archs in dict.fromkeys(only.values()):
        if not any(arch_of(on) in archs for on, _ in noticed):
            compiling += on_architectures(archs, kernels)
    rows = changed_rows(old, new)
    use_them, untried = configured(base.options.tree, rows)
    first = dict[frozenset[str], str]()
    for (file, line), archs in only.items():
        first.setdefault(archs, f"{file}:{line}")
    return Telling(
        base.words,
        changed,
        noticed,
        rows,
        tuple(use_them),
        untried,
        {place: archs for archs, place in first.items()},
        tuple(compiling),
        tuple(name for name, _ in others.most_common()),
        kernels,
    )


def families_of(folder: Path, file: str) -> list[str]:
    """The kernel families that a file in ggml-cuda/ belongs to, or whose headers include it; all if there are none."""
    name, families = file.rpartition("/")[2], [family.case for family in FAMILIES]
    own = [case for case in families if name.startswith(f"fattn-{case}")]
    headers = ((case, included(folder.glob(f"fattn-{case}*.cuh"), (), folder)) for case in families)
    return own or [case for case, found in headers if any(path.name == name for path in found)] or families


@cache
def killers() -> list[Killer]:
    """The rows of the shipped `killers.csv`."""
    rows = csv.reader((files(__package__) / TABLE).read_text(encoding="utf-8").splitlines()[1:])
    return [Killer(file, function, int(line), on, case, int(faults)) for file, function, line, on, case, faults in rows]
