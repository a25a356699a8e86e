"""Change the code of the verdict in one place at a time, and print the changes that no test notices."""

import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe.base import documents
from fattn_probe.base.activity import Activity
from fattn_probe.base.console import NOTES, OUT
from fattn_probe.base.digest import short
from fattn_probe.base.errors import ComparisonError, InputError, LostError
from fattn_probe.base.figures import clock
from fattn_probe.base.workers import Workers, prepare_workers
from fattn_probe.cli import exit_codes
from tests.mutants import explained
from tests.mutants.mutants import Mutant, finding
from tests.mutants.trial import known, tried

ROOT = Path(__file__).resolve().parents[2]
MODULES = (
    *("fattn_probe/base/arrays.py", "fattn_probe/verdict/judge/*.py", "fattn_probe/verdict/measure/*.py"),
    "fattn_probe/verdict/truth/error_model/*.py",
)
TESTS = (
    *("tests/verdict/judge/test_*.py", "tests/daily/compare/test_*.py", "tests/verdict/truth/error_model/test_*.py"),
    *(
        "tests/daily/reproduce/test_reproduce.py",
        "tests/daily/regress/test_one_judge.py",
        "tests/daily/regress/test_changes.py",
    ),
)
EQUIVALENT = Path(__file__).with_name("equivalent.yaml")


def files(patterns: Iterable[str]) -> list[str]:
    """The files of the repository that match, by name."""
    return sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern))


def key(mutant: Mutant) -> str:
    """Names a mutant in the file of a session: one of the same source of the same module."""
    return short((mutant.module, "\n", mutant.source))


def results(
    mutants: Sequence[Mutant], modules: Sequence[str], jobs: int, session: Path | None, deadline: float
) -> dict[Mutant, bool]:
    """Whether a test notices each mutant, as far as that is known at the deadline (of time.monotonic).

    A session's file has the results of earlier runs; a mutant that survived counts only if no test has changed since.
    """
    tests = short(path.read_bytes() for path in sorted((ROOT / "tests").rglob("*.py")))
    kept: Iterator[Mapping[str, object]] = documents.read(session, "result") if session else iter(())
    known = {item["mutant"]: item["noticed"] for item in kept if item["noticed"] or item["tests"] == tests}
    found = {mutant: bool(known[key(mutant)]) for mutant in mutants if key(mutant) in known}
    left = [mutant for mutant in mutants if mutant not in found]
    with (
        Activity(NOTES, len(left), "running the tests without a mutant") as activity,
        closing(tried(left, modules, files(TESTS), ROOT, jobs)) as answers,
    ):
        for mutant, noticed in answers if left else ():
            activity.step(f"{mutant.module}:{mutant.line}")
            activity.count("noticed" if noticed else "survived")
            found[mutant] = noticed
            if session:
                documents.append(session, [{"mutant": key(mutant), "noticed": noticed, "tests": tests}])
            if not noticed:
                activity.note(f"survived: {mutant}")
            if time.monotonic() > deadline:
                break
    return found


def main(
    within: Annotated[str, typer.Option("--in", help="Only modules whose path has this regex.")] = "",
    only: Annotated[str, typer.Option(help="Only mutants whose text, FILE:LINE: WAS -> NOW, has this regex.")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Mutants at once; default: one a core.")] = os.cpu_count() or 1,
    session: Annotated[
        Path | None, typer.Option(help="Continue the run of this file, and keep the results there.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Stop after this time; --session continues.")] = math.inf,
) -> None:
    """Try all mutants; exit 5 if one survives without a reason, or if the mutant of a reason is gone."""
    start, modules = time.monotonic(), files(MODULES)
    prepare_workers("tests.mutants.worker")
    chosen = [module for module in modules if re.search(within, module)]
    with Workers[str, list[Mutant]](partial(finding, root=ROOT), jobs) as pool:
        of_module = dict(known(pool, chosen))
    every = [mutant for module in chosen for mutant in of_module[module]]
    mutants = [mutant for mutant in every if re.search(only, str(mutant))]
    if not mutants:
        raise InputError(f"--in {within!r} --only {only!r}: no mutant matches, in {', '.join(MODULES)}")
    reasons = explained.read(EQUIVALENT)
    found = results(mutants, modules, jobs, session, start + seconds)
    survivors = [mutant for mutant in mutants if not found.get(mutant, True)]
    left, gone = reasons.left(survivors), reasons.gone(every, chosen)
    killed = len(found) - len(survivors)
    for mutant in left:
        OUT.print(f"survived: {mutant}", markup=False)
    for module, was, now in gone:
        OUT.print(f"{EQUIVALENT.name} explains a mutant that is not there: {module}: {was}\n    -> {now}", markup=False)
    score = 100 * killed / max(1, killed + len(left))
    OUT.print(
        f"verdict: {len(found)} mutants, {len(survivors) - len(left)} of them equivalent; of the others {killed} "
        f"noticed and {len(left)} not: {score:.4g} %, in {clock(time.monotonic() - start)}"
    )
    if len(found) < len(mutants):
        raise LostError(f"verdict: {len(mutants) - len(found)} of {len(mutants)} mutants are left; --session continues")
    if left or gone:
        raise ComparisonError(f"verdict: {len(left)} mutants survived, {len(gone)} reasons have no mutant")


if __name__ == "__main__":
    with exit_codes():
        typer.run(main)
