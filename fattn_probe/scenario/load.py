"""Read a scenario file, and report all its mistakes together, each with its line, key, and what would be right."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ..errors import InputError
from ..files import read_text
from ..yaml_lines import Document, parse
from .explain import explain
from .matrix import MAX_CASES, Variation, apply, count, variations
from .matrix import Path as Key
from .refuse import refusals
from .schema import Scenario

NO_VARIATION = Variation({}, {})


@dataclass(frozen=True)
class Problem:
    """A mistake in a file: its key (path below the document) and what is to be said of it."""

    key: Key
    text: str


def load(path: Path | str) -> Scenario:
    """Read and check a scenario file; InputError names every mistake as `path:line: key: found, allowed`."""
    path = Path(path)
    return loads(read_text(path, "the scenario"), str(path)).named(path.stem)


def loads(text: str, name: str = "scenario") -> Scenario:
    """`load` for text; `name` stands for the path in messages."""
    document = _parse(text, name)
    found = [(mistake.line, mistake.text) for mistake in document.mistakes]
    found += [
        (document.line(problem.key), f"{_dotted(problem.key)}: {problem.text}") for problem in _problems(document)
    ]
    if found:
        found.sort(key=lambda mistake: mistake[0])
        raise InputError("\n".join(dict.fromkeys(f"{name}:{line}: {said}" for line, said in found)))
    return Scenario.model_validate(document.value)


def _parse(text: str, name: str) -> Document:
    try:
        return parse(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise InputError(f"{name}:{line}: not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{name}:1: not YAML: {' '.join(str(error).split())}") from None


def _problems(document: Document) -> Iterator[Problem]:
    """Mistakes of the file's own settings first, then those that only a case of its matrix has."""
    base = document.value
    if not isinstance(base, dict):
        yield Problem((), f"found {'nothing' if base is None else repr(base)[:60]}, allowed: keys such as `version: 1`")
        return
    matrix = base.get("matrix") or {}
    problems = list(_check(base, NO_VARIATION, shapes=not matrix))
    yield from problems
    if not isinstance(matrix, dict) or any(problem.key[:1] == ("matrix",) for problem in problems):
        return
    if count(matrix) > MAX_CASES:
        yield Problem(("matrix",), f"makes {count(matrix)} cases, allowed: at most {MAX_CASES}")
        return
    for case in variations(matrix):
        yield from (problem for problem in _check(apply(base, case), case) if problem not in problems)


def _check(settings: dict[str, Any], case: Variation, shapes: bool = True) -> Iterator[Problem]:
    try:
        scenario = Scenario.model_validate(settings)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            key, text = explain(details, settings)
            yield Problem(_place(key, case), text)
        return
    for refusal in refusals(scenario) if shapes else []:
        yield Problem(_place(refusal.path, case), refusal.reason)


def _place(key: Key, case: Variation) -> Key:
    """Where the file sets a key: in the matrix, if a variation does."""
    for dotted, place in case.places.items():
        parts = tuple(dotted.split("."))
        if key[: len(parts)] == parts:
            return (*place, *key[len(parts) :])
        if key[-1:] == ("kind",) and len(key) > 1 and key[:-1] == parts[: len(key) - 1]:
            return place
    return key


def _dotted(key: Key) -> str:
    return ".".join(map(str, key)) or "the file"
