"""Run a suite: each of its entries on each of its targets, with its own build and its own checks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fattn_probe.base.activity import Step, quiet
from fattn_probe.base.errors import InputError
from fattn_probe.base.workers import prepare_workers, threads
from fattn_probe.cases.device import Target, load_devices, parse_targets
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.regress.runner import Outcome, Planned, SuiteRunner
from fattn_probe.daily.regress.selection import CaseSelection, select
from fattn_probe.daily.regress.suite import Entry, Suite, called, cases_of, only_of
from fattn_probe.llama.build.toolchain import find_toolchain
from fattn_probe.machine.run.session import Session, has_gpu
from fattn_probe.machine.run.simulator import unpacked_tables
from fattn_probe.verdict.judge.checks import Checks, Sample, UseModel


@dataclass(frozen=True)
class Given:
    """A user's replacements for a suite's targets, name filter and checks; empty or None keeps the suite's own.

    `devices` is a file with additional GPUs; `note` is called with a sentence about the skipped targets.
    """

    on: str = ""
    only: str = ""
    model: UseModel | None = None
    sample: Sample | None = None
    devices: Path | None = None
    note: Step = quiet

    def checks(self, entry: Entry) -> Checks:
        """The checks with which the cases of an entry are judged."""
        own = entry.check.checks
        return replace(own, model=self.model or own.model, sample=self.sample or own.sample)

    def targets(self, entry: Entry, folder: Path) -> list[Target]:
        """The targets that can run an entry of the suite in `folder`; calls `note` for those that cannot."""
        own = load_devices(folder / entry.devices) if entry.devices else {}
        words, given = (self.on, "--on") if self.on else (",".join(self.there(entry.on)), f"`on` of {called(entry)}")
        found = list(parse_targets(words, own | load_devices(self.devices), given))
        real = [target for target in found if target.engine != "sim"]
        if real and (entry.flavour == "check" or entry.sanitize):  # a real GPU would need a different build
            self.note(f"{entry.name or 'the suite'} needs a simulated GPU: skipping {real[0]}")
            found = [target for target in found if target.engine == "sim"]
        return found

    def there(self, words: Sequence[str]) -> list[str]:
        """An entry's devices; skips an optional one (`gpu?`), with a note, if this machine has no GPU."""
        found = [word.removesuffix("?") for word in words if not word.endswith("?") or has_gpu()]
        for word in words:
            if word.removesuffix("?") not in found:
                self.note(f"this machine has no NVIDIA GPU: skipping {word.removesuffix('?')}")
        return found


def chosen_entries(suite: Suite, folder: Path, given: Given) -> list[Entry]:
    """The entries to run; if the user names targets, leaves out entries that only repeat the suite's cases."""
    first, *others = suite.parts
    if not given.on:
        return [first, *others]
    names = names_of(first, folder)
    same = {"flavour", "sanitize", "quants", "check", "repeat"}

    def repeats(entry: Entry) -> bool:
        equal = entry.model_dump(include=same) == first.model_dump(include=same)
        return equal and not entry.upstream and names.issuperset(names_of(entry, folder))

    return [first, *(entry for entry in others if not repeats(entry))]


def own_cases(entry: Entry, folder: Path) -> tuple[Case, ...]:
    """The cases of an entry's scenarios that pass its own filter."""
    return CaseSelection(tuple(cases_of(entry, folder))).some(entry.only, only_of(entry)).cases


def names_of(entry: Entry, folder: Path) -> set[str]:
    """The names of the cases of an entry's scenarios."""
    return {case.name for case in own_cases(entry, folder)}


def entry_on(entry: Entry, target: Target) -> str:
    """An entry with its target in words: `few-sms on sim:h200-5`, or the target if the entry has no name."""
    return f"{entry.name} on {target}" if entry.name else str(target)


def entries_on_targets(suite: Suite, folder: Path, given: Given) -> Iterator[tuple[Entry, Target]]:
    """Each entry of a suite with each of its targets."""
    for entry in chosen_entries(suite, folder, given):
        for target in given.targets(entry, folder):
            yield entry, target


def run_suite(pairs: Sequence[tuple[Entry, Target]], folder: Path, runner: SuiteRunner, given: Given) -> list[Outcome]:
    """Run a suite; returns one outcome per entry and target. Raises InputError if a filter leaves no case at all.

    `runner` has the suite's name and a session with its source; `folder` contains the suite's file.
    """
    sessions, planned = dict[str, Session](), list[Planned]()
    prepare_workers(SuiteRunner.__module__, "fattn_probe.llama.build.overlay")  # the overlay is needed only to compile
    with threads(2) as beside:
        if any(target.engine == "sim" for _, target in pairs):  # fills an empty cache while the cases are read
            beside.submit(unpacked_tables)
            beside.submit(find_toolchain, "sim")
        for entry, target in pairs:
            session = sessions.setdefault(entry.name, session_for(entry, runner.session))
            found = select(entry, folder, session, target, only=given.only)
            if found.names:  # even if none of these cases belongs to this shard
                part = found.of(runner.part.shard)
                planned.append(Planned(run_name(runner.suite, entry), session, target, part, given.checks(entry)))
        if not planned:
            raise InputError(f"no case name matches {given.only!r}" if given.only else "no cases for these targets")
        return runner.outcomes(planned)


def run_name(suite: str, entry: Entry) -> str:
    """The suite name of an entry's runs in the history."""
    return f"{suite}/{entry.name}" if entry.name else suite


def session_for(entry: Entry, session: Session) -> Session:
    """A session with the entry's build. A build that the user gave (`--build`) is used as it is."""
    options = replace(session.options, repeat=entry.repeat)
    if options.build is None:
        quants = tuple(dict.fromkeys((*options.quants, *entry.quants)))
        options = replace(options, flavour=entry.flavour, sanitize=tuple(entry.sanitize), quants=quants)
    return Session(options, session.progress, watch=session.watch)
