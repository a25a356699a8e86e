"""A release with all its mutants behind switches, less those that do not compile."""

import difflib
import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from fattn_probe.build import RUNNER, BuildRequest
from fattn_probe.build.ensure import lock_of
from fattn_probe.build.key import Contents, folder_of, key_of
from fattn_probe.build.make import make_plan
from fattn_probe.build.overlay import prepare
from fattn_probe.build.sources import read_sources
from fattn_probe.build.steps import CompileStep
from fattn_probe.build.toolchain import find_toolchain
from fattn_probe.cache import cache_dir
from fattn_probe.detect.mutants import Mutant, mutate
from fattn_probe.errors import BuildError
from fattn_probe.regress.pool import cores
from fattn_probe.source import KernelCase, Tree
from fattn_probe.source.patches import Patch

CUDA = "ggml/src/ggml-cuda"
FILES = ("fattn-mma-f16.cuh", "fattn-tile.cuh", "fattn-vec.cuh", "fattn-common.cuh", "fattn.cu")
ERROR = re.compile(r"(?:^|/)(?P<file>fattn[\w-]*\.cuh?):(?P<line>\d+):\d+: error:", re.MULTILINE)
REQUIRED = re.compile(r"(?:^|/)(?P<file>fattn[\w-]*\.cuh?):(?P<line>\d+):\d+:\s+required from", re.MULTILINE)
NOT_CONSTANT = re.compile(
    r"(?:^|/)(?P<file>fattn[\w-]*\.cuh?):(?P<line>\d+):\d+: note: [^\n]*"
    r"(?:not initialized with a constant expression|declared here)",
    re.MULTILINE,
)
"""Where a value is defined that another line needs at compile time."""
ROUNDS = 12
Say = Callable[[str], None]


@dataclass(frozen=True)
class Schemata:
    """The mutants of a release that compile, and the patch that puts them behind switches."""

    patch: Patch
    mutants: tuple[Mutant, ...]


def switched(tree: Tree, without: frozenset[int]) -> Schemata:
    """A release's mutants but those `without`; numbers do not depend on what is left out."""
    first, parts, mutants = 1, [], []
    for name in FILES:
        before = (tree.root / CUDA / name).read_text()
        count = len(mutate(before, name)[1])
        after, found = mutate(before, name, first, without)
        parts.append(whole_file(f"{CUDA}/{name}", before, after))
        mutants += found
        first += count
    return Schemata(Patch("mutants", Path("mutants.patch"), "", (), "".join(parts)), tuple(mutants))


def whole_file(path: str, before: str, after: str) -> str:
    """A diff of one file with all of its lines: hunks of less might have several places."""
    lines = before.splitlines(), after.splitlines()
    diff = difflib.unified_diff(*lines, f"a/{path}", f"b/{path}", n=max(map(len, lines)), lineterm="")
    return "".join(f"{line}\n" for line in diff)


def compiling(tree: Tree, kernels: dict[str, Sequence[KernelCase]], say: Say) -> Schemata:
    """The mutants that compile in all of these kernels, by architecture; remembered for the release."""
    path = cache_dir() / "mutants" / f"{switched(tree, frozenset()).patch.digest[:16]}.json"
    known: dict[str, list[int]] = json.loads(path.read_text()) if path.is_file() else {}
    without = frozenset(known.get("without", ()))
    for arch, cases in kernels.items():
        key = f"{arch}: {' '.join(sorted(case.name for case in cases))}"
        if key in known:
            continue
        without = without_errors(tree, arch, cases, without, say)
        known |= {"without": sorted(without), key: []}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(known))
    return switched(tree, without)


def without_errors(
    tree: Tree, arch: str, cases: Sequence[KernelCase], without: frozenset[int], say: Say
) -> frozenset[int]:
    """The mutants to leave out, so that the kernels compile for an architecture."""
    for _ in range(ROUNDS):
        made = switched(tree, without)
        errors = syntax_errors(BuildRequest(tree, arch=arch, patches=(made.patch,)), cases)
        if not errors:
            return without
        bad = suspects(made.mutants, errors)
        if not bad:
            raise BuildError(f"the switched sources do not compile, at {sorted(errors)[0]}")
        say(f"sm_{arch}: {len(bad)} mutants do not compile and are left out")
        without |= bad
    raise BuildError(f"after {ROUNDS} rounds there are still mutants that do not compile")


def suspects(mutants: Iterable[Mutant], errors: set[tuple[str, int]]) -> frozenset[int]:
    """The mutants that may be the reason of errors in these lines: first those with another name, then all."""
    by_line: dict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_line[mutant.file, mutant.line].append(mutant)
    found = [near(by_line, place) for place in errors]
    names = [[mutant for mutant in group if mutant.operator == "other name"] or group for group in found]
    return frozenset(mutant.id for group in names for mutant in group)


def near(by_line: dict[tuple[str, int], list[Mutant]], place: tuple[str, int]) -> list[Mutant]:
    """The mutants of a line, or of the nearest line before it: an expression may go over several."""
    file, line = place
    return next((by_line[file, at] for at in range(line, max(line - 12, 0), -1) if (file, at) in by_line), [])


def syntax_errors(request: BuildRequest, cases: Sequence[KernelCase]) -> set[tuple[str, int]]:
    """The places of the errors in the sources of kernels and in the dispatch, without generating code."""
    toolchain = find_toolchain("sim")
    folder = folder_of(request, key_of(request, toolchain))
    sources = read_sources(request.tree, request.quants, toolchain.machine)
    contents = Contents(tuple(case.name for case in cases), programs=(RUNNER,))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lock_of(folder):
        prepare(folder, request, sources, contents)
        steps = make_plan(request, replace(toolchain, ccache=None), contents, sources).steps
        attention = [step for step in steps if isinstance(step, CompileStep) and "/fattn" in step.source]
        with ThreadPoolExecutor(cores()) as pool:
            found = pool.map(lambda step: places(step, folder), attention)
    return set().union(*found)


def places(step: CompileStep, folder: Path) -> set[tuple[str, int]]:
    """The places of one source's errors."""
    command = [word for word in step.command if word not in ("-c", "-o", step.object, "-MD")]
    at = command.index("-MF")
    command[at : at + 2] = ["-fsyntax-only", "-fmax-errors=0"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = places_of(ERROR, done.stderr) | places_of(NOT_CONSTANT, done.stderr)
    found = found or places_of(REQUIRED, done.stderr)
    if done.returncode and not found:
        raise BuildError(f"{step.source} does not compile: {done.stderr[:400]}")
    return found


def places_of(pattern: re.Pattern[str], text: str) -> set[tuple[str, int]]:
    """The files and lines of a pattern's matches."""
    return {(match["file"], int(match["line"])) for match in pattern.finditer(text)}
