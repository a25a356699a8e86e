"""A release with all its mutants behind switches, except those that do not compile."""

import difflib
import functools
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fattn_probe.base.activity import Step
from fattn_probe.base.cache import Kind, growing, lock_beside
from fattn_probe.base.digest import short
from fattn_probe.base.documents import Document
from fattn_probe.base.errors import BuildError
from fattn_probe.base.host import cores
from fattn_probe.base.workers import threads
from fattn_probe.lab.detect.counts import Place
from fattn_probe.lab.detect.mutants import Mutant, mutate
from fattn_probe.llama.build import RUNNER, BuildRequest
from fattn_probe.llama.build.ensure import WHAT, is_unsealed
from fattn_probe.llama.build.flags import MUTANTS
from fattn_probe.llama.build.key import Contents, folder_of, key_of
from fattn_probe.llama.build.make import make_plan
from fattn_probe.llama.build.overlay import prepare
from fattn_probe.llama.build.sources import read_sources
from fattn_probe.llama.build.steps import BuildStep
from fattn_probe.llama.build.toolchain import find_toolchain
from fattn_probe.llama.source import KernelCase, Tree
from fattn_probe.llama.source.features import CUDA
from fattn_probe.llama.source.patches import Patch, parse, patched

FILES = ("fattn-mma-f16.cuh", "fattn-tile.cuh", "fattn-vec.cuh", "fattn-common.cuh", "fattn.cu", "mma.cuh")
MESSAGE = re.compile(
    r"(?:^|/)(?P<file>(?:fattn[\w-]*|mma)\.cuh?):(?P<line>\d+):\d+:\s+(?P<kind>error:|required from|note: [^\n]*"
    r"(?:not initialized with a constant expression|declared here))",
    re.MULTILINE,
)
"""An error, the location of its instantiation, or a value that another line needs at compile time."""
SWITCH = re.compile(r"simt::mutant\((\d+)\b")
SUSPECTS = ("template argument", "f16", "other name")
"""Kinds of faults, ordered by how often they fail to compile."""
COMPILING = Kind("mutants", "the list of mutants that compile")
DOCUMENT = Document("a list of mutants that compile", dict[str, list[Any]])
ROUNDS = 20
Source = tuple[str, str]
"""An architecture and a file."""


@dataclass(frozen=True)
class Schema:
    """The mutants of a release, and the patches for a build with them behind switches."""

    patches: tuple[Patch, ...]
    mutants: tuple[Mutant, ...]


def switched(tree: Tree, patches: Sequence[Patch], without: frozenset[int]) -> Schema:
    """A release's mutants except those in `without`; leaving some out does not renumber the others."""
    texts = {name: (tree.root / CUDA / name).read_text() for name in FILES}
    for patch in patches:
        for diff in parse(patch):
            if diff.path.name in texts:
                texts[diff.path.name] = patched(patch, diff, texts[diff.path.name]) or ""
    parts, mutants = list[str](), list[Mutant]()
    for name, before in texts.items():
        after, found = mutate(before, name, len(mutants) + 1, without)
        mutants += found
        lines = before.splitlines(), after.splitlines()
        whole = max(map(len, lines))  # smaller hunks might fit in several places
        diff_lines = difflib.unified_diff(*lines, f"a/{CUDA}/{name}", f"b/{CUDA}/{name}", n=whole, lineterm="")
        parts += [f"{line}\n" for line in diff_lines]
    made = Patch(MUTANTS, Path(f"{MUTANTS}.patch"), "", (), "".join(parts))
    return Schema((*patches, made), tuple(mutant for mutant in mutants if mutant.id not in without))


def compiling(
    release: BuildRequest,
    kernels: Mapping[str, Sequence[KernelCase]],
    say: Step,
    unwanted: frozenset[int] = frozenset(),
) -> Schema:
    """The mutants that compile in all of these `kernels`, by architecture, and are in at least one of the builds.

    Mutants that do not compile are stored for the release, because finding them takes minutes. `unwanted` mutants are
    not built, unless an earlier build contains them and is not much larger.
    """
    switch = functools.cache(functools.partial(switched, release.tree, release.patches))
    every = switch(frozenset())
    release_key = every.patches[-1].digest[:16]
    known = DOCUMENT.remembered(COMPILING, release_key) or {}
    # Use an earlier build if it is not much larger, so that new verdicts do not require a new build and baseline runs.
    number = len(every.mutants)
    earlier = [frozenset(numbers) for numbers in known.get("left out", ())]
    large = 4 * (number - len(unwanted))
    fitting = (numbers for numbers in earlier if numbers <= unwanted and number - len(numbers) <= large)
    unwanted = max(fitting, key=len, default=unwanted)
    asked = short(str(sorted(unwanted)), 8)
    keys = {
        arch: f"{arch} without {asked}: {' '.join(sorted(case.name for case in cases))}"
        for arch, cases in kernels.items()
    }
    bad = frozenset(known.get("without", ()))
    if left := {arch: kernels[arch] for arch, key in keys.items() if key not in known}:
        without, present = without_errors(release, switch, left, bad | unwanted, say)
        known = remember(release_key, without - unwanted, {keys[arch]: present[arch] for arch in left}, unwanted)
        bad = frozenset(known["without"])
    built = frozenset().union(*(known[key] for key in keys.values()))
    made = switch(bad | unwanted)
    return replace(made, mutants=tuple(mutant for mutant in made.mutants if mutant.id in built))


def remember(
    key: str, without: Collection[int], present: Mapping[str, Collection[int]], unwanted: Collection[int]
) -> dict[str, Any]:
    """Add to the cache's record: mutants that do not compile, those in builds by key, and those left out of a build.

    Returns the new record, including additions by other processes.
    """
    with lock_beside(COMPILING.place(key)):
        known = DOCUMENT.remembered(COMPILING, key) or {}
        known["without"] = sorted({*known.get("without", ()), *without})
        known |= {cases: sorted(numbers) for cases, numbers in present.items()}
        earlier = {tuple(numbers) for numbers in known.get("left out", ())}
        known["left out"] = sorted({*earlier, tuple(sorted(unwanted))})
        DOCUMENT.remember(COMPILING, key, known)
    return known


def without_errors(
    release: BuildRequest,
    switch: Callable[[frozenset[int]], Schema],
    kernels: Mapping[str, Sequence[KernelCase]],
    without: frozenset[int],
    say: Step,
) -> tuple[frozenset[int], dict[str, set[int]]]:
    """The mutants to leave out so that kernels compile, and, by architecture, the mutants in the sources.

    Compiling one kernel of each family finds most errors; then all kernels are compiled, and then those with errors.
    """
    first = {arch: list({case.family: case for case in cases}.values()) for arch, cases in kernels.items()}
    present: dict[str, set[int]] = {arch: set() for arch in kernels}
    for some in (first, kernels):
        left: frozenset[Source] | None = None
        for _ in range(ROUNDS):
            made = switch(without)
            errors: dict[Source, set[tuple[Place, ...]]] = {}
            for source, (found, switches) in checked(replace(release, patches=made.patches), some, left).items():
                present[source[0]] |= switches
                errors |= {source: found} if found else {}
            if not errors:
                break
            bad = suspects(made.mutants, set().union(*errors.values()))
            if not bad:
                raise BuildError(f"the switched sources do not compile: {next(iter(errors.items()))}")
            say(f"{len(bad)} mutants do not compile and are left out")
            without, left = without | bad, frozenset(errors)
        else:
            raise BuildError(f"after {ROUNDS} rounds there are still mutants that do not compile")
    return without, {arch: switches - without for arch, switches in present.items()}


def suspects(mutants: Iterable[Mutant], errors: Iterable[tuple[Place, ...]]) -> frozenset[int]:
    """The mutants that may have caused errors, each error given by the locations in its message, innermost last.

    These are the mutants on the line, or on the nearest line before it, because an expression may span several lines.
    The kinds that most often fail to compile come first.
    """
    by_line: dict[Place, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_line[mutant.file, mutant.line].append(mutant)

    def near(place: Place) -> list[Mutant]:
        file, line = place
        return next((by_line[file, at] for at in range(line, max(line - 12, 0), -1) if (file, at) in by_line), [])

    found: set[int] = set()
    for places in errors:
        arguments = [mutant for place in places[:-1] for mutant in near(place) if mutant.operator == SUSPECTS[0]]
        group = arguments or near(places[-1])
        kinds = [[mutant for mutant in group if mutant.operator == kind] for kind in SUSPECTS]
        found |= {mutant.id for mutant in next(filter(None, kinds), group)}
    return frozenset(found)


def checked(
    release: BuildRequest, kernels: Mapping[str, Sequence[KernelCase]], left: frozenset[Source] | None
) -> dict[Source, tuple[set[tuple[Place, ...]], set[int]]]:
    """For each source of a kernel or of the dispatch, its errors, or its switches; only sources in `left`, if given."""
    toolchain = find_toolchain("sim")
    with ExitStack() as locks, threads(cores()) as pool:
        found = {}
        for arch, cases in kernels.items():
            request = replace(release, arch=arch)
            folder = folder_of(request, key_of(request, toolchain.versions))
            sources = read_sources(request.tree, request.quants, toolchain.machine)
            contents = Contents(tuple(case.name for case in cases), programs=(RUNNER,))
            locks.enter_context(lock_beside(folder))
            prepare(locks.enter_context(growing(folder, WHAT, is_unsealed)), request, sources, contents)
            for step in make_plan(request, replace(toolchain, ccache=None), contents, sources).steps:
                if step.rule == "compile" and "/fattn" in step.inputs[0]:
                    source = arch, step.inputs[0]
                    if left is None or source in left:
                        found[source] = pool.submit(errors_or_switches, step, folder)
        return {source: future.result() for source, future in found.items()}


def errors_or_switches(step: BuildStep, folder: Path) -> tuple[set[tuple[Place, ...]], set[int]]:
    """The locations of one source's errors, found without generating code.

    If there are none, also the numbers of the switches that preprocessing leaves: none in other architectures' code.
    """
    command = [word for word in step.command if word not in ("-c", "-o", step.output, "-MD")]
    at = command.index("-MF")

    def run(*options: str) -> "subprocess.CompletedProcess[str]":
        words = [*command[:at], *options, *command[at + 2 :]]
        return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)

    done = run("-fsyntax-only", "-fmax-errors=0")
    found = messages(done.stderr)
    if done.returncode and not found:
        raise BuildError(f"{step.inputs[0]} does not compile: {done.stderr[:400]}")
    return found, set() if found else set(map(int, SWITCH.findall(run("-E", "-P").stdout)))


def messages(text: str) -> set[tuple[Place, ...]]:
    """The locations of each error in a compiler's output: those of the instantiations, then its own."""
    found, outer = set[tuple[Place, ...]](), list[Place]()
    for match in MESSAGE.finditer(text):
        place = match["file"], int(match["line"])
        if match["kind"] == "required from":
            outer.append(place)
        else:
            found.add((*outer, place))
            outer = []
    return found or ({(place,) for place in outer})
