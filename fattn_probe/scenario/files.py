"""The cases of scenario files and folders."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError
from ..files import is_folder
from .cases import Case, expand
from .load import load


def cases_of(paths: Sequence[Path]) -> list[Case]:
    """The cases of scenario files and folders; one InputError reports the mistakes of all files."""
    files = [file for path in paths for file in (sorted(path.glob("*.yaml")) if is_folder(path) else [path])]
    cases, problems = [], []
    for file in files:
        try:
            cases += expand(load(file))
        except InputError as error:
            problems.append(str(error))
    if problems:
        raise InputError("\n".join(problems))
    if not cases:
        raise InputError(f"no scenario in {', '.join(map(str, paths))}" if paths else "no scenario was given")
    return cases


def one_case(path: Path, name: str) -> Case:
    """The case named `name`, or the only case; else InputError."""
    cases = cases_of([path])
    found = [case for case in cases if case.name == name or not name]
    if len(found) != 1:
        raise InputError(f"{path} has these cases; choose one with --case: {', '.join(case.name for case in cases)}")
    return found[0]
