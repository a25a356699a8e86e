"""The cases of scenario files, of recorded cases, and of folders."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fattn_probe.base.errors import InputError
from fattn_probe.base.files import is_folder
from fattn_probe.cases.scenario.cases import Case, Recording, expand
from fattn_probe.cases.scenario.check import load
from fattn_probe.cases.scenario.schema import Inspect, Tolerance

RECORDED = ".gguf"
"""The suffix of case files and captures."""


def read_cases(file: Path) -> list[Case]:
    """The cases of a scenario, or the recorded case of a `.gguf` file."""
    return [recorded_case(file)] if file.suffix == RECORDED else expand(load(file))


def recorded_case(path: Path) -> Case:
    """The case in a case file or a capture, named after the file; its inputs stay in the file."""
    from fattn_probe.cases.op.case_file import read_case  # imports gguf, for which a list of scenarios should not wait

    file = read_case(path)
    return Case(
        name=path.stem,
        scenario=path.stem,
        about=f"recorded as {file.name}",
        op=file.op,
        source=Recording(path.resolve(), file.digest),
        tolerance=Tolerance(),
        inspect=Inspect(),
        expect={},
        device=None,
    )


def cases_of(paths: Sequence[Path]) -> list[Case]:
    """The cases of scenario files, recorded cases and folders; one InputError reports the mistakes of all files."""
    files = list[Path]()
    for path in paths:
        inside = (*path.glob("*.yaml"), *path.glob(f"*{RECORDED}")) if is_folder(path) else (path,)
        files += sorted(inside)
    cases, problems = list[Case](), []
    for file in files:
        try:
            cases += read_cases(file)
        except InputError as error:
            problems.append(str(error))
    if problems:
        raise InputError("\n".join(problems))
    if not cases:
        raise InputError(f"no scenario in {', '.join(map(str, paths))}" if paths else "no scenario was given")
    return told_apart(cases)


def told_apart(cases: Sequence[Case]) -> list[Case]:
    """The cases; if files have the same name, as in two captures of models, their folder is added to the name."""
    files = {case.source.path for case in cases if isinstance(case.source, Recording)}
    times = Counter(path.stem for path in files)
    return [
        replace(case, name=f"{case.source.path.parent.name}-{case.name}")
        if isinstance(case.source, Recording) and times[case.name] > 1
        else case
        for case in cases
    ]


def one_case(path: Path, name: str) -> Case:
    """The case named `name`, or the only case; else InputError."""
    cases = cases_of([path])
    found = [case for case in cases if case.name == name or not name]
    if len(found) != 1:
        raise InputError(f"{path} has these cases; choose one with --case: {', '.join(case.name for case in cases)}")
    return found[0]
