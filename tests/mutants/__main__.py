"""Change the code of the verdict in one place at a time, and print the changes that no test notices."""

import os
import re
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe.base.activity import Activity
from fattn_probe.base.console import NOTES, OUT
from fattn_probe.base.errors import ComparisonError, InputError
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
        "tests/daily/regress/test_known_defects.py",
    ),
)
EQUIVALENT = Path(__file__).with_name("equivalent.yaml")


def files(patterns: Iterable[str]) -> list[str]:
    """The files of the repository that match, by name."""
    return sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern))


def survivors_of(mutants: Sequence[Mutant], modules: Sequence[str], jobs: int) -> list[Mutant]:
    """The mutants that no test notices; each is printed when it is found."""
    survivors = []
    with Activity(NOTES, len(mutants), "running the tests without a mutant") as activity:
        for mutant, noticed in tried(mutants, modules, files(TESTS), ROOT, jobs):
            activity.step(f"{mutant.module}:{mutant.line}")
            activity.count("noticed" if noticed else "survived")
            if not noticed:
                survivors.append(mutant)
                activity.note(f"survived: {mutant}")
    return sorted(survivors, key=mutants.index)


def main(
    within: Annotated[str, typer.Option("--in", help="Only modules whose path has this regex.")] = "",
    only: Annotated[str, typer.Option(help="Only mutants whose text, FILE:LINE: WAS -> NOW, has this regex.")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Mutants at once; default: one a core.")] = os.cpu_count() or 1,
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
    survivors = survivors_of(mutants, modules, jobs)
    left, gone = reasons.left(survivors), reasons.gone(every, chosen)
    killed = len(mutants) - len(survivors)
    for mutant in left:
        OUT.print(f"survived: {mutant}", markup=False)
    for module, was, now in gone:
        OUT.print(f"{EQUIVALENT.name} explains a mutant that is not there: {module}: {was}\n    -> {now}", markup=False)
    score = 100 * killed / max(1, killed + len(left))
    OUT.print(
        f"verdict: {len(mutants)} mutants, {len(survivors) - len(left)} of them equivalent; of the others {killed} "
        f"noticed and {len(left)} not: {score:.4g} %, in {clock(time.monotonic() - start)}"
    )
    if left or gone:
        raise ComparisonError(f"verdict: {len(left)} mutants survived, {len(gone)} reasons have no mutant")


if __name__ == "__main__":
    with exit_codes():
        typer.run(main)
