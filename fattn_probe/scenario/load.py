"""Read a scenario file, and report all its mistakes together, each with line, key and what is allowed."""

from pathlib import Path

import yaml

from ..errors import InputError
from ..files import read_text
from ..yaml_lines import Document, parse
from .check import check
from .schema import Scenario


def load(path: Path | str) -> Scenario:
    """Read and check a scenario file; InputError names every mistake as `path:line: key: found, allowed`."""
    path = Path(path)
    return loads(read_text(path, "the scenario"), str(path)).named(path.stem)


def loads(text: str, name: str = "scenario") -> Scenario:
    """`load` for text; `name` stands for the path in messages."""
    document = _parse(text, name)
    found = [(mistake.line, mistake.text) for mistake in document.mistakes]
    checked = check(document.value)
    found += [(document.line(problem.key), str(problem)) for problem in checked.problems]
    if found or checked.scenario is None:
        found.sort(key=lambda mistake: mistake[0])
        raise InputError("\n".join(dict.fromkeys(f"{name}:{line}: {said}" for line, said in found)))
    return checked.scenario


def _parse(text: str, name: str) -> Document:
    try:
        return parse(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise InputError(f"{name}:{line}: not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{name}:1: not YAML: {' '.join(str(error).split())}") from None
