"""Read the counters of a coverage build with g++'s gcov."""

import json
import math
import posixpath
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fattn_probe.base.errors import BuildError, LostError
from fattn_probe.base.process import run
from fattn_probe.lab.detect.counts import CountedLine
from fattn_probe.llama.build import Build
from fattn_probe.llama.build.plan import case_file
from fattn_probe.llama.build.sources import INSTANCES
from fattn_probe.llama.source import KernelCase
from fattn_probe.machine.run.frames import short_kernel

ATTENTION = re.compile(r"overlay/ggml/src/ggml-cuda/(?P<file>fattn[\w-]*\.cuh?|mma\.cuh|cp-async\.cuh)")
BRANCHING = re.compile(r"\b(?:if|for|while|switch|case|do)\b|\?|&&|\|\|")
"""A line without these has no branches itself, only those of the rewriter's additions and of inlined functions."""
SWITCH = re.compile(r"\b(?:switch|case)\b")
DECISION = re.compile(r"\b(?:if|for|while)\b|\?")
OPERATOR = re.compile(r"&&|\|\|")
ASSERTING = re.compile(r"\b(?:GGML_ASSERT|GGML_ABORT|static_assert|assert|CUDA_CHECK)\b")
"""A correct program never takes the other branch of these."""
INSTALL_GCOV = "gcov, which comes with g++, is not on this machine; install it: `sudo apt install g++`"


def link_notes(build: Build, counters: Path, kernels: Iterable[KernelCase]) -> None:
    """Put g++'s notes for the objects of some kernels where the counters will be.

    A build may also contain kernels of other runs, and, after an interrupted compilation, notes without an object.
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
    """The counts of all objects with attention sources; `source` is ggml-cuda/ of the tree."""
    gcov = shutil.which("gcov")
    if gcov is None:
        raise BuildError(INSTALL_GCOV)
    texts: dict[str, list[str]] = {}
    for notes in sorted(counters.rglob("*.gcno")):
        command = [gcov, "--json-format", "--stdout", "--branch-probabilities", notes.name]
        done = run(command, cwd=notes.parent)
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
    """The outcomes of a line's conditions: g++ counts each inlined copy of a lambda separately."""
    decisions = len(DECISION.findall(text)) or not text.rstrip().endswith(("&&", "||"))
    outcomes = 2 * (len(OPERATOR.findall(text)) + decisions)
    each = math.gcd(len(branches), outcomes)  # fewer outcomes if part of the condition is constant in some copies
    if SWITCH.search(text) or len(branches) <= outcomes or (each < outcomes and len(branches) <= 2 * outcomes):
        return branches
    return tuple(sum(branches[at::each]) for at in range(each))


def branches_of(line: Mapping[str, Any]) -> Iterator[int]:
    """How often each outcome of a line's branches occurred, without those of calls that may throw."""
    branches = line["branches"]
    for at, branch in enumerate(branches):
        near = branches[max(at - 1, 0) : at + 2]
        if not any(one["throw"] for one in near):
            yield branch["count"]
