"""A release with all its mutants behind switches, less those that do not compile."""

import difflib
import functools
import hashlib
import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fattn_probe.build import RUNNER, BuildRequest
from fattn_probe.build.ensure import lock_of
from fattn_probe.build.key import Contents, folder_of, key_of
from fattn_probe.build.make import make_plan
from fattn_probe.build.overlay import prepare
from fattn_probe.build.sources import read_sources
from fattn_probe.build.steps import CompileStep
from fattn_probe.build.toolchain import find_toolchain
from fattn_probe.cache import cache_dir
from fattn_probe.detect.counts import Place
from fattn_probe.detect.mutants import Mutant, mutate
from fattn_probe.errors import BuildError
from fattn_probe.files import replacing
from fattn_probe.locks import lock_of_file
from fattn_probe.regress.pool import cores
from fattn_probe.source import KernelCase, Tree
from fattn_probe.source.features import CUDA
from fattn_probe.source.patches import Patch, parse, patched

FILES = ("fattn-mma-f16.cuh", "fattn-tile.cuh", "fattn-vec.cuh", "fattn-common.cuh", "fattn.cu")
MESSAGE = re.compile(
    r"(?:^|/)(?P<file>fattn[\w-]*\.cuh?):(?P<line>\d+):\d+:\s+(?P<kind>error:|required from|note: [^\n]*"
    r"(?:not initialized with a constant expression|declared here))",
    re.MULTILINE,
)
"""An error, the place that instantiates what has it, or a value that another line needs at compile time."""
SWITCH = re.compile(r"simt::mutant\((\d+)\b")
SUSPECTS = ("template argument", "f16", "other name")
"""Kinds of faults by how often they do not compile."""
ROUNDS = 20
MUCH_LARGER = 4
Say = Callable[[str], None]
Source = tuple[str, str]
"""An architecture and a file."""


@dataclass(frozen=True)
class Schemata:
    """The mutants of a release that compile, and the patches of a build that has them behind switches."""

    patches: tuple[Patch, ...]
    mutants: tuple[Mutant, ...]


def sources_of(tree: Tree, patches: Sequence[Patch]) -> dict[str, str]:
    """The texts of the files in which mutants are made, after some patches."""
    texts = {name: (tree.root / CUDA / name).read_text() for name in FILES}
    for patch in patches:
        for diff in parse(patch):
            if diff.path.name in texts:
                texts[diff.path.name] = patched(patch, diff, texts[diff.path.name]) or ""
    return texts


def switched(tree: Tree, patches: Sequence[Patch], without: frozenset[int]) -> Schemata:
    """A release's mutants but those `without`; numbers do not depend on what is left out."""
    parts, mutants = list[str](), list[Mutant]()
    for name, before in sources_of(tree, patches).items():
        after, found = mutate(before, name, len(mutants) + 1, without)
        parts.append(whole_file(f"{CUDA}/{name}", before, after))
        mutants += found
    made = Patch("mutants", Path("mutants.patch"), "", (), "".join(parts))
    return Schemata((*patches, made), tuple(mutant for mutant in mutants if mutant.id not in without))


def whole_file(path: str, before: str, after: str) -> str:
    """A diff of one file with all of its lines: hunks of less might have several places."""
    lines = before.splitlines(), after.splitlines()
    diff = difflib.unified_diff(*lines, f"a/{path}", f"b/{path}", n=max(map(len, lines)), lineterm="")
    return "".join(f"{line}\n" for line in diff)


@dataclass(frozen=True)
class Release:
    """A tree with patches, and the K-V type pairs that there are vec kernels for besides the default ones."""

    tree: Tree
    patches: tuple[Patch, ...]
    quants: tuple[str, ...] = ()


def compiling(
    release: Release,
    kernels: Mapping[str, Sequence[KernelCase]],
    say: Say,
    unwanted: frozenset[int] = frozenset(),
) -> Schemata:
    """The mutants that compile in all of these kernels, by architecture, and that one of these builds has.

    Which ones do not compile is remembered for the release: it is a question of minutes. Those `unwanted` are not
    built, unless an earlier build has them that is not much larger.
    """
    switch = functools.cache(functools.partial(switched, release.tree, release.patches))
    every = switch(frozenset())
    path = cache_dir() / "mutants" / f"{every.patches[-1].digest[:16]}.json"
    known = remembered(path)
    earlier = [frozenset(numbers) for numbers in known.get("left out", ())]
    unwanted = left_out(len(every.mutants), unwanted, earlier)
    asked = hashlib.sha256(str(sorted(unwanted)).encode()).hexdigest()[:8]
    keys = {
        arch: f"{arch} without {asked}: {' '.join(sorted(case.name for case in cases))}"
        for arch, cases in kernels.items()
    }
    bad = frozenset(known.get("without", ()))
    if left := {arch: kernels[arch] for arch, key in keys.items() if key not in known}:
        without, present = without_errors(release, switch, left, bad | unwanted, say)
        known = remember(path, without - unwanted, {keys[arch]: present[arch] for arch in left}, unwanted)
        bad = frozenset(known["without"])
    built = frozenset().union(*(known[key] for key in keys.values()))
    made = switch(bad | unwanted)
    return replace(made, mutants=tuple(mutant for mutant in made.mutants if mutant.id in built))


def remembered(path: Path) -> dict[str, Any]:
    """What a file remembers of a release's mutants; nothing if it is missing or damaged."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def remember(
    path: Path, without: Collection[int], present: Mapping[str, Collection[int]], unwanted: Collection[int]
) -> dict[str, Any]:
    """Add to what a file remembers: mutants that do not compile, those in builds by key, and those a build left out.

    Returns all that the file remembers now, another process's additions included.
    """
    with lock_of_file(path):
        known = remembered(path)
        known["without"] = sorted({*known.get("without", ()), *without})
        known |= {key: sorted(numbers) for key, numbers in present.items()}
        earlier = {tuple(numbers) for numbers in known.get("left out", ())}
        known["left out"] = sorted({*earlier, tuple(sorted(unwanted))})
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_text(json.dumps(known))
    return known


def left_out(number: int, unwanted: frozenset[int], earlier: Collection[frozenset[int]]) -> frozenset[int]:
    """The mutants that a build leaves out, of a `number`: those of an earlier build, if it is not much larger.

    So mutants whose fate becomes known do not make a build, and the runs without a mutant, anew.
    """
    large = MUCH_LARGER * (number - len(unwanted))
    fitting = (numbers for numbers in earlier if numbers <= unwanted and number - len(numbers) <= large)
    return max(fitting, key=len, default=unwanted)


def without_errors(
    release: Release,
    switch: Callable[[frozenset[int]], Schemata],
    kernels: Mapping[str, Sequence[KernelCase]],
    without: frozenset[int],
    say: Say,
) -> tuple[frozenset[int], dict[str, set[int]]]:
    """The mutants to leave out, so that kernels compile for their architectures; by architecture, those in the sources.

    One kernel of each family shows most errors; then all of them are compiled, and then those that had errors.
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
    """The mutants that may be the reason of errors, each the places of one message, innermost last.

    Of the mutants of a line, those of the kind that most often does not compile are taken first.
    """
    by_line: dict[Place, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_line[mutant.file, mutant.line].append(mutant)
    found: set[int] = set()
    for places in errors:
        arguments = [m for place in places[:-1] for m in near(by_line, place) if m.operator == SUSPECTS[0]]
        group = arguments or near(by_line, places[-1])
        kinds = [[mutant for mutant in group if mutant.operator == kind] for kind in SUSPECTS]
        found |= {mutant.id for mutant in next(filter(None, kinds), group)}
    return frozenset(found)


def near(by_line: Mapping[Place, list[Mutant]], place: Place) -> list[Mutant]:
    """The mutants of a line, or of the nearest line before it: an expression may go over several."""
    file, line = place
    return next((by_line[file, at] for at in range(line, max(line - 12, 0), -1) if (file, at) in by_line), [])


def checked(
    release: Release, kernels: Mapping[str, Sequence[KernelCase]], left: frozenset[Source] | None
) -> dict[Source, tuple[set[tuple[Place, ...]], set[int]]]:
    """By source of a kernel or of the dispatch, its errors, or the switches in it; only those `left`, if given."""
    toolchain = find_toolchain("sim")
    with ExitStack() as locks, ThreadPoolExecutor(cores()) as pool:
        found = {}
        for arch, cases in kernels.items():
            request = BuildRequest(release.tree, arch=arch, patches=release.patches, quants=release.quants)
            folder = folder_of(request, key_of(request, toolchain))
            sources = read_sources(request.tree, request.quants, toolchain.machine)
            contents = Contents(tuple(case.name for case in cases), programs=(RUNNER,))
            folder.parent.mkdir(parents=True, exist_ok=True)
            locks.enter_context(lock_of(folder))
            prepare(folder, request, sources, contents)
            for step in make_plan(request, replace(toolchain, ccache=None), contents, sources).steps:
                if isinstance(step, CompileStep) and "/fattn" in step.source:
                    source = arch, step.source
                    if left is None or source in left:
                        found[source] = pool.submit(errors_or_switches, step, folder)
        return {source: future.result() for source, future in found.items()}


def errors_or_switches(step: CompileStep, folder: Path) -> tuple[set[tuple[Place, ...]], set[int]]:
    """The places of one source's errors; without errors, the numbers of the switches in it."""
    errors = errors_of(step, folder)
    return errors, set() if errors else switches_of(step, folder)


def command_of(step: CompileStep) -> tuple[list[str], int]:
    """A step's command without its output, and where further options can stand."""
    command = [word for word in step.command if word not in ("-c", "-o", step.object, "-MD")]
    at = command.index("-MF")
    del command[at : at + 2]
    return command, at


def errors_of(step: CompileStep, folder: Path) -> set[tuple[Place, ...]]:
    """The places of one source's errors, without generating code."""
    command, at = command_of(step)
    command[at:at] = ["-fsyntax-only", "-fmax-errors=0"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = messages(done.stderr)
    if done.returncode and not found:
        raise BuildError(f"{step.source} does not compile: {done.stderr[:400]}")
    return found


def messages(text: str) -> set[tuple[Place, ...]]:
    """The places of each error of a compiler's output: those that instantiate it, then its own."""
    found, outer = set[tuple[Place, ...]](), list[Place]()
    for match in MESSAGE.finditer(text):
        place = match["file"], int(match["line"])
        if match["kind"] == "required from":
            outer.append(place)
        else:
            found.add((*outer, place))
            outer = []
    return found or ({(place,) for place in outer})


def switches_of(step: CompileStep, folder: Path) -> set[int]:
    """The numbers of the switches that a source has after preprocessing: not those for another architecture."""
    command, at = command_of(step)
    command[at:at] = ["-E", "-P"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return set(map(int, SWITCH.findall(done.stdout)))
