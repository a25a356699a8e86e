"""Run suites in coverage builds."""

import json
import math
import posixpath
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fattn_probe.base.errors import BuildError, InputError, LostError
from fattn_probe.base.files import scratch
from fattn_probe.base.host import cores
from fattn_probe.base.process import run
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.regress.entries import Given, entries_on_targets
from fattn_probe.daily.regress.pool import Job, judged
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.selection import select
from fattn_probe.daily.regress.suite import Entry, load_suite
from fattn_probe.lab.detect.counts import CountedLine, LineCoverage
from fattn_probe.llama.build import Build
from fattn_probe.llama.build.plan import case_file
from fattn_probe.llama.build.sources import INSTANCES
from fattn_probe.llama.source import KernelCase
from fattn_probe.llama.source.features import CUDA
from fattn_probe.machine.run.capture import inputs_of
from fattn_probe.machine.run.command import describe
from fattn_probe.machine.run.frames import short_kernel
from fattn_probe.machine.run.outcome import Ran, Unsupported
from fattn_probe.machine.run.prepare import prepare, required_kernels
from fattn_probe.machine.run.session import Session
from fattn_probe.verdict.judge.cases import Answers, judged_case
from fattn_probe.verdict.judge.checks import Checks

ATTENTION = re.compile(r"overlay/ggml/src/ggml-cuda/(?P<file>fattn[\w-]*\.cuh?|mma\.cuh|cp-async\.cuh)")
BRANCHING = re.compile(r"\b(?:if|for|while|switch|case|do)\b|\?|&&|\|\|")
"""A line without these has no branches of its own, only those of the rewriter's additions and of inlined functions."""
SWITCH = re.compile(r"\b(?:switch|case)\b")
DECISION = re.compile(r"\b(?:if|for|while)\b|\?")
OPERATOR = re.compile(r"&&|\|\|")
ASSERTING = re.compile(r"\b(?:GGML_ASSERT|GGML_ABORT|static_assert|assert|CUDA_CHECK)\b")
"""A correct program never takes the failing branch of these."""


def link_notes(build: Build, counters: Path, kernels: Iterable[KernelCase]) -> None:
    """Put g++'s notes for the objects of some kernels in the folder of the counters.

    A build may also contain kernels from other runs, and, after an interrupted compilation, notes without an object.
    """
    wanted = {case_file(kernel.name) for kernel in kernels}
    for notes in (build.folder / "obj").rglob("*.gcno"):
        is_kernel = notes.parent.name == INSTANCES
        if (is_kernel and notes.stem not in wanted) or not notes.with_suffix(".o").is_file():
            continue
        there = counters / notes.absolute().relative_to("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.symlink_to(notes.absolute())


def counted(counters: Path, source: Path) -> Iterator[CountedLine]:
    """The counts from all objects compiled from attention sources; `source` is the tree's ggml-cuda/ folder."""
    gcov = shutil.which("gcov")
    if gcov is None:
        raise BuildError("gcov, which comes with g++, is not installed; install it: `sudo apt install g++`")
    texts: dict[str, list[str]] = {}
    for notes in sorted(counters.rglob("*.gcno")):
        done = run([gcov, "--json-format", "--stdout", "--branch-probabilities", notes.name], cwd=notes.parent)
        if done.code:
            raise LostError(f"gcov cannot read {notes}: {done.stderr.strip()}")
        yield from parse(json.loads(done.stdout), source, texts)


def parse(document: Mapping[str, Any], source: Path, texts: dict[str, list[str]]) -> Iterator[CountedLine]:
    """The counts of one object, from gcov's JSON; `texts` keeps the lines of the sources."""
    for file in document["files"]:
        if match := ATTENTION.fullmatch(posixpath.normpath(file["file"])):
            name = match["file"]
            if name not in texts:
                texts[name] = (source / name).read_text(errors="replace").splitlines()
            functions = {item["name"]: short_kernel(item["demangled_name"]) for item in file["functions"]}
            for line in file["lines"]:
                if line["line_number"] <= len(texts[name]):  # the rewriter appends declarations
                    text = texts[name][line["line_number"] - 1]
                    function = functions.get(line.get("function_name", ""), "")
                    branching = BRANCHING.search(text) is not None and ASSERTING.search(text) is None
                    branches = folded(tuple(branches_of(line)), text) if branching else ()
                    yield CountedLine(name, function, line["line_number"], line["count"], branches)


def folded(branches: tuple[int, ...], text: str) -> tuple[int, ...]:
    """The outcomes of a line's conditions, summed over a lambda's inlined copies, which g++ counts separately."""
    decisions = len(DECISION.findall(text)) or not text.rstrip().endswith(("&&", "||"))
    outcomes = 2 * (len(OPERATOR.findall(text)) + decisions)
    each = math.gcd(len(branches), outcomes)  # fewer outcomes if part of the condition is constant in some copies
    if SWITCH.search(text) or len(branches) <= outcomes or (each < outcomes and len(branches) <= 2 * outcomes):
        return branches
    return tuple(sum(branches[at::each]) for at in range(each))


def branches_of(line: Mapping[str, Any]) -> Iterator[int]:
    """How often each outcome of a line's branches occurred, without the branches of calls that may throw."""
    branches = line["branches"]
    for at, branch in enumerate(branches):
        near = branches[max(at - 1, 0) : at + 2]
        if not any(one["throw"] for one in near):
            yield branch["count"]


OnCase = Callable[[Result, int, int], None]


@dataclass(frozen=True)
class Measured:
    """The coverage of a suite; `cases` is the number that ran on all targets, `lost` the reasons why others did not."""

    suite: str
    coverage: LineCoverage
    targets: tuple[str, ...]
    cases: int
    lost: tuple[str, ...]


def by_suite(found: Iterable[Measured]) -> list[Measured]:
    """One result for each suite, in order: the counts of several runs, for example on different GPUs, are added up."""
    joined: dict[str, Measured] = {}
    for item in found:
        if (one := joined.get(item.suite)) is None:
            joined[item.suite] = item
            continue
        coverage = LineCoverage()
        coverage.update(one.coverage)
        coverage.update(item.coverage)
        targets = tuple(dict.fromkeys(one.targets + item.targets))
        joined[item.suite] = Measured(item.suite, coverage, targets, one.cases + item.cases, one.lost + item.lost)
    return list(joined.values())


def run_one(session: Session, case: Case, target: Target) -> Result:
    """Run a case, or the part of it that `regress` would run, without judging it; returns only how it ended."""
    with inputs_of(case) as inputs:
        part = judged_case(session, Answers(case, inputs), target, Checks()).part
        outcome = session.run(case, inputs, target, part)
    status = "pass" if isinstance(outcome, Ran) else "unsupported" if isinstance(outcome, Unsupported) else "lost"
    return Result(case.name, case.digest, status, "" if status == "pass" else describe(outcome))


def measure(suite_file: Path, session: Session, pairs: Sequence[tuple[Entry, Target]], on_case: OnCase) -> Measured:
    """Run the cases of a suite's entries on simulated GPUs, and count what they execute."""
    coverage, tree = LineCoverage(), session.options.tree
    assert tree is not None
    ran, lost = 0, list[str]()
    chosen: dict[str, dict[str, Case]] = {}
    for entry, target in pairs:
        cases = select(entry, suite_file.parent, session, target).cases
        chosen.setdefault(str(target), {}).update({case.name: case for case in cases})
    for name, target in {str(target): target for _, target in pairs}.items():
        cases = tuple(chosen[name].values())
        prepare(session, [(case, [target]) for case in cases])
        with scratch() as folder:
            link_notes(session.build_for(target), folder, required_kernels(session, cases, target))
            simulation = replace(session.options.simulation, threads=1, counters=folder)
            job = Job(run_one, replace(session.options, simulation=simulation), session.builds, target)
            with closing(judged(job, cases, cores(), session.progress)) as arriving:
                for number, result in enumerate(arriving, 1):
                    on_case(result, number, len(cases))
                    ran += result.status == "pass"
                    lost += [f"{result.name} on {name}: {result.reason}"] * (result.status == "lost")
            coverage.add(counted(folder, tree.root / CUDA), name)
    return Measured(suite_file.stem, coverage, tuple(chosen), ran, tuple(lost))


def check(command: str, targets: Iterable[Target], why: str = "can report what a case executes") -> None:
    """InputError if a target is not a simulated GPU; `why` ends the message."""
    for target in targets:
        if target.engine != "sim":
            raise InputError(f"{command} --on {target}: only simulated GPUs (sim:ID) {why}")


def on_simulated(command: str, suite_file: Path, given: Given) -> list[tuple[Entry, Target]]:
    """Each entry of a suite on each of its simulated GPUs; InputError if the run itself names another target."""
    pairs = list(entries_on_targets(load_suite(suite_file), suite_file.parent, given))
    if given.on:
        check(command, (target for _, target in pairs))
    return [(entry, target) for entry, target in pairs if target.engine == "sim"]
