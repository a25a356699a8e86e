"""Read a scenario file, and report all its mistakes together, each with line, key and what is allowed."""

from pathlib import Path

from fattn_probe.base.errors import InputError
from fattn_probe.base.files import read_text
from fattn_probe.base.yaml_lines import parse

from .check import check
from .schema import Scenario


def load(path: Path | str) -> Scenario:
    """Read and check a scenario file; InputError names every mistake as `path:line: key: found, allowed`."""
    path = Path(path)
    return loads(read_text(path, "the scenario"), str(path)).named(path.stem)


def loads(text: str, name: str = "scenario") -> Scenario:
    """`load` for text; `name` stands for the path in messages."""
    document = parse(text, name)
    found = [(mistake.line, mistake.text) for mistake in document.mistakes]
    checked = check(document.value)
    found += [(document.line(problem.key), str(problem)) for problem in checked.problems]
    if found or checked.scenario is None:
        found.sort(key=lambda mistake: mistake[0])
        raise InputError("\n".join(dict.fromkeys(f"{name}:{line}: {said}" for line, said in found)))
    return checked.scenario
