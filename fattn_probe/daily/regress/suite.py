"""Suite files: the scenarios, devices, source and checks of a regression suite."""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from fattn_probe.base.errors import InputError
from fattn_probe.base.files import find_files
from fattn_probe.base.regex import problem_of
from fattn_probe.base.yaml_lines import Key, YamlDocument, read
from fattn_probe.cases import MOST_REPEATS, shipped
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.cases import read_cases, told_apart
from fattn_probe.cases.scenario.check import ENTRY_NAME, explain, nearest
from fattn_probe.cases.scenario.spec import Spec
from fattn_probe.llama.build.key import not_with_address
from fattn_probe.llama.source import DEFAULT_SOURCE
from fattn_probe.verdict.judge.checks import QUERIES_ALONE, Checks, UseModel

ALLOWED = ", allowed: "


class CheckSpec(Spec):
    """How the cases of a suite are judged: as `compare` would judge them with the flags of the same names."""

    model: UseModel = "auto"
    """When to compute the rounding model: `auto` means up to 4 GFLOP per case. Without the model, small faults pass."""
    sample: Literal["auto", "all"] | Annotated[int, Field(ge=1)] = "auto"
    """The rows to check exactly: `auto` means all except in very large cases; or `all`, or a number of rows."""
    repeat: int = Field(default=1, ge=1, le=MOST_REPEATS)
    """Number of runs of each case; their outputs must be bit-identical."""
    batch_invariance: bool = False
    """Whether some queries also run alone, and their bits are compared with those of the batch."""

    roundings: bool = False
    """Whether an accurate output fails if its bits differ from the rounding model."""

    kernels: bool = False
    """Whether a correct output fails if the default release is known to launch different kernels for the op."""

    order: int = Field(default=0, ge=0, le=1000)
    """Number of random orders in which all cases run in one process; outputs must match those of separate runs."""

    @property
    def checks(self) -> Checks:
        """The checks for the judge."""
        alone = QUERIES_ALONE if self.batch_invariance else 0
        asked = (self.model, self.sample, self.repeat, alone, self.roundings, self.kernels, self.order)
        return Checks(*asked, predictions=False)


class Entry(Spec):
    """Cases, the targets that they run on, and how they are run and judged."""

    name: str = Field(default="", pattern=ENTRY_NAME)
    """Name of the entry's runs in the history, `SUITE/NAME`; empty for the suite itself."""
    scenarios: list[str] = Field(default=[])
    """Scenario files and recorded cases: paths or globs relative to the suite's file, or names of shipped scenarios."""
    upstream: bool = False
    """Whether to add every case in the source's test-backend-ops, with fattn-probe's inputs and reference."""
    only: str = ""
    """A regular expression; only cases whose names match it are run."""
    cases: list[str] = Field(default=[])
    """Names of the cases to run from the scenarios; empty for all."""
    on: list[str] = Field(default=["sim:h200"], min_length=1)
    """Targets for each case: sim:ID, gpu, gpu:N; `gpu?` is skipped if this machine has no GPU."""
    devices: str = ""
    """A file that defines more GPUs for `on`, as `--devices` does; relative to the suite's file."""
    repeat: int = Field(default=1, ge=1, le=MOST_REPEATS)
    """Number of timed runs of each case; above 1, a real GPU runs one case at a time and its times are kept."""
    flavour: Literal["release", "debug", "check"] = "release"
    """The build: `release`, `debug`, or `check`, whose simulated GPU checks every memory access."""
    sanitize: list[Literal["address", "undefined"]] = Field(default=[])
    """Sanitizers that the simulator's kernels are compiled with."""
    quants: list[str] = Field(default=[])
    """K-V type pairs for which the build has vec kernels, besides the default ones, such as `q5_1-q4_0`."""
    check: CheckSpec = Field(default=CheckSpec())
    """The checks for the cases: `model`, `sample`, `repeat`, `batch_invariance`, `roundings`, `kernels`, `order`."""

    @field_validator("only")
    @classmethod
    def _is_an_expression(cls, only: str) -> str:
        if problem := problem_of(only):
            raise ValueError(f"found {only!r}, allowed: a regular expression ({problem})")
        return only

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        if problem := not_with_address(self.flavour, self.sanitize):
            raise ValueError(problem)
        return self

    @property
    def has_cases(self) -> bool:
        """Whether the entry names any cases."""
        return bool(self.scenarios) or self.upstream


class Suite(Entry):
    """A regression suite: an entry, plus further entries with their own cases, targets and checks."""

    version: Literal[1]
    """Version of this schema."""
    about: str = Field(min_length=1, max_length=200)
    """One line: what the suite tests."""
    source: str = DEFAULT_SOURCE
    """The llama.cpp to run; if unset, a checkout that contains the current folder comes before this default."""
    lost: float = Field(default=0.02, ge=0, le=1)
    """The share of lost cases above which a run has no verdict (exit 4)."""
    seconds: float = Field(default=0, ge=0)
    """Seconds that a run may take on two cores with compiled kernels; a longer run is reported. 0: no limit."""
    fresh: bool = False
    """Whether all cases run, including those whose code has not changed since an earlier run."""
    entries: list[Entry] = Field(default=[])
    """Further entries, each with a name and its own cases, targets and checks."""

    @model_validator(mode="after")
    def _has_all(self) -> Self:
        if not self.parts:
            raise ValueError("a suite needs scenarios, or upstream: true")
        return self

    @property
    def parts(self) -> tuple[Entry, ...]:
        """All entries, the suite's own first."""
        every: tuple[Entry, ...] = (self, *self.entries)
        return tuple(part for part in every if part.has_cases)


def load_suite(path: Path) -> Suite:
    """Read a suite; raises InputError, which lists every mistake with its line."""
    document = read(path, "the suite")
    if document.value is None:
        raise InputError(f"{path}:1: the file: found nothing, allowed: keys such as `version: 1`")
    if isinstance(document.value, dict) and document.value.keys() >= {"hsk", "n_kv"}:
        raise InputError(f"{path}:1: the file: this is a scenario (see `fattn-probe compare`), allowed: a suite")
    try:
        suite = Suite.model_validate(document.value)
    except ValidationError as error:
        raise InputError("\n".join(_mistakes(path, document, error))) from error
    if problems := [*_entry_mistakes(path, document, suite.entries), *_missing_scenarios(path, document, suite)]:
        raise InputError("\n".join(problems))
    return suite


def _mistakes(path: Path, document: YamlDocument, error: ValidationError) -> Iterator[str]:
    """Turn pydantic's errors into messages, one per key: pydantic reports each alternative of a value separately."""
    by_key: dict[Key, list[str]] = {}
    for details in error.errors(include_url=False):
        key, said = explain(details, document.value, Suite)
        by_key.setdefault(key, []).append(said)
    for key, (first, *others) in by_key.items():
        also = (said.partition(ALLOWED)[2] for said in others)
        said = " or ".join([first, *filter(None, also)])
        yield f"{path}:{document.line(key)}: {'.'.join(map(str, key)) or 'the file'}: {said}"


def _entry_mistakes(path: Path, document: YamlDocument, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield messages about entries without a name, with the name of an earlier one, or without cases."""
    first: dict[str, int] = {}
    for number, entry in enumerate(entries):
        line, place = document.line(("entries", number)), f"entries.{number}"
        if not entry.name:
            yield f"{path}:{line}: {place}: without a name, allowed: a unique name"
        elif entry.name in first:
            line = document.line(("entries", number, "name"))
            said = f"found {entry.name!r}, which the entry on line {first[entry.name]} already has"
            yield f"{path}:{line}: {place}.name: {said}, allowed: a unique name"
        if not entry.has_cases:
            yield f"{path}:{line}: {place}: without cases, allowed: scenarios, or upstream: true"
        first.setdefault(entry.name, line)


def _missing_scenarios(path: Path, document: YamlDocument, suite: Suite) -> Iterator[str]:
    """Yield messages about items of `scenarios` that match no file and no shipped name."""
    for place, entry in [((), suite), *((("entries", number), entry) for number, entry in enumerate(suite.entries))]:
        for number, item in enumerate(entry.scenarios):
            key: Key = (*place, "scenarios", number)
            try:
                scenario_files(item, path.parent)
            except InputError as error:
                yield f"{path}:{document.line(key)}: {'.'.join(map(str, key))}: {error}"


def scenario_files(item: str, folder: Path) -> list[Path]:
    """The files that an item of `scenarios` matches, or else the shipped scenario of that name; InputError if none."""
    if paths := find_files(folder, item):
        return paths
    by_name = {shipped.name_of("scenario", path): path for path in shipped.files("scenario")}
    if item in by_name:
        return [by_name[item]]
    allowed = f"a path or pattern that matches files in {folder}, or a name from `fattn-probe scenario list`"
    raise InputError(f"no scenario matches {item!r}{ALLOWED}{allowed}{nearest(item, list(by_name))}")


def only_of(entry: Entry) -> str:
    """The name of the key `only` in an entry or a suite, for messages."""
    return f"`only` of {called(entry)}"


def called(entry: Entry) -> str:
    """The name of an entry, or of the suite itself, in messages."""
    return f"entry {entry.name}" if entry.name else "the suite"


@functools.lru_cache(maxsize=1000)
def cases_in(path: Path, changed: int) -> tuple[Case, ...]:
    """The cases of a scenario file; cached by path and modification time, because entries share most files."""
    return tuple(read_cases(path))


def cases_of(entry: Entry, folder: Path) -> list[Case]:
    """The cases of an entry's scenarios, in the order of the file; InputError if an item or name matches none."""
    paths = [path for item in entry.scenarios for path in scenario_files(item, folder)]
    cases = [case for path in paths for case in cases_in(path, path.stat().st_mtime_ns)]
    by_name = {case.name: case for case in told_apart(cases)}
    if unknown := [name for name in entry.cases if name not in by_name]:
        near = nearest(unknown[0], list(by_name))
        raise InputError(f"{called(entry)}: its scenarios have no case {unknown[0]!r}{near}")
    return [case for name, case in by_name.items() if not entry.cases or name in set(entry.cases)]
