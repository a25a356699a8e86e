"""Measure how long `regress` takes to report a wrong edit: one wrong line in each of the attention files.

`python -m benchmarks.edit_to_verdict [--json] [--keep FOLDER] [FILE...]` copies the default release, plants one
wrong line in the copy, and measures the seconds until `regress quick -x` shows the first failure, and the seconds that
a whole `quick` takes. Before that, it measures `quick` from an empty cache, with all kernels compiled, and with all
verdicts reused. Each edit is unique, so no object from an earlier measurement is reused. All of this takes half an hour
on two cores; close other programs.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from fattn_probe.base.cache import cache_dir
from fattn_probe.base.host import cores
from fattn_probe.llama.source import DEFAULT_SOURCE, Tree, kept_files, resolve
from fattn_probe.llama.source.features import CUDA

RESCALED = (r"(KQ_max_scale(?:\[\w+\])?) = expf\((.+)\);", r"\1 = expf((0.9f + 0*{mark})*(\2));")
"""At a new maximum, the sums so far are rescaled by a wrong factor."""
EDITS = {
    "fattn-vec.cuh": RESCALED,
    "fattn-tile.cuh": RESCALED,
    "fattn-mma-f16.cuh": RESCALED,
    "fattn-common.cuh": (r"int l = 0; l < parallel_blocks", "int l = 1 + 0*{mark}; l < parallel_blocks"),
    "fattn.cu": (r"(use_gqa_opt = mask) && max_bias == 0\.0f", r"\1 + 0*{mark}"),
}
"""For each file, a regular expression for the line to change (its first match), and the replacement.

`{mark}` is a number that makes the line different from all earlier ones. It is inside the function, because a mark
outside would also change the code that only launches kernels.
"""
FIRST = re.compile(r"^fail \S")
HEAD = "| one wrong line in | first failure | its exit code | whole `quick` | its exit code |\n|---|--:|--:|--:|--:|"


@dataclass(frozen=True)
class Call:
    """A run of `regress`: seconds until its first failure is shown (None without one) and until its end."""

    first: float | None
    seconds: float
    code: int
    said: str


def edited(text: str, rule: tuple[str, str]) -> str:
    """A file's text with one wrong line, different from the wrong lines of earlier runs."""
    pattern, wrong = rule
    found, number = re.subn(pattern, wrong.format(mark=time.time_ns() % 10**9), text, count=1)
    if not number:
        raise SystemExit(f"no line matches {pattern!r}: this source needs a different rule")
    return found


def copy_of(tree: Tree, folder: Path) -> Path:
    """A copy of the files that fattn-probe reads from a tree."""
    for path in kept_files(tree.root):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(tree.root / path, folder / path)
    return folder


def regress(words: Sequence[str], cache: Path) -> Call:
    """Run `fattn-probe regress quick`, with this cache and a new history."""
    began, first, said = time.monotonic(), None, []
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fattn_probe", "regress", "quick", *words, "--history", f"{folder}/history.db"]
        env = {**os.environ, "FATTN_PROBE_CACHE": str(cache)}
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env
        ) as running:
            assert running.stderr is not None
            for line in running.stderr:
                said.append(line.rstrip())
                if first is None and FIRST.match(line):
                    first = time.monotonic() - began
            code = running.wait()
    return Call(first, time.monotonic() - began, code, "\n".join(said[-20:]))


def measured(files: Sequence[str], folder: Path, words: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Call]]]:
    """The name of each measurement and its runs by name, as they end."""
    tree, cache = resolve(DEFAULT_SOURCE), folder / "cache"
    for name in ("sources", "headers"):
        if (cache_dir() / name).is_dir():  # no headers are fetched where a CUDA toolkit is installed
            shutil.copytree(cache_dir() / name, cache / name, dirs_exist_ok=True)
    for name, more in (("empty cache", []), ("built", ["--fresh"]), ("nothing changed", [])):
        yield name, {"whole": regress([*words, *more], cache)}
    for file in files:
        calls = {}
        for name, more in (("first", ["-x"]), ("whole", [])):
            source = copy_of(tree, folder / f"{file}-{name}")
            path = source / CUDA / file
            path.write_text(edited(path.read_text(), EDITS[file]))
            calls[name] = regress([*words, "--source", str(source), *more], cache)
        yield file, calls


def row(name: str, calls: Mapping[str, Call]) -> str:
    """A row of the table."""
    first, whole = calls.get("first"), calls["whole"]
    cells = ["", ""] if first is None else ["none" if first.first is None else f"{first.first:.0f} s", str(first.code)]
    return f"| {' | '.join([name, *cells, f'{whole.seconds:.0f} s', str(whole.code)])} |"


def main() -> None:
    """Measure, and print a table or a JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help=f"one of {', '.join(EDITS)}; default: all")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--keep", type=Path, help="use this folder, and keep its cache for the next time")
    parser.add_argument("--filter", default="", help="only cases whose name matches, to try the script")
    given = parser.parse_args()
    if unknown := [file for file in given.files if file not in EDITS]:
        parser.error(f"no rule for {unknown[0]}")
    words = ["--filter", given.filter] if given.filter else []
    found = {}
    with TemporaryDirectory() as folder:
        print(
            f"{cores()} cores, load {os.getloadavg()[0]:.1f}\n\n{HEAD}" if not given.json else "", end="\n", flush=True
        )
        for name, calls in measured(given.files or list(EDITS), given.keep or Path(folder), words):
            found[name] = {key: asdict(call) for key, call in calls.items()}
            if not given.json:
                print(row(name, calls), flush=True)
    if given.json:
        print(json.dumps({"cores": cores(), "load": os.getloadavg()[0], "measured": found}, indent=1))


if __name__ == "__main__":
    main()
