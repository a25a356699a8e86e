"""A device file: its data, and the line of each key."""

from dataclasses import dataclass
from pathlib import Path

import yaml

from fattn_probe import yaml_lines
from fattn_probe.errors import InputError
from fattn_probe.files import read_text

Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]


@dataclass(frozen=True)
class Document:
    """One file: its plain data, and the lines of its keys."""

    path: Path
    data: Value
    parsed: yaml_lines.Document

    def where(self, *key: str) -> str:
        """`file:line` of a key, or of its nearest parent in the file."""
        return f"{self.path}:{self.parsed.line(key)}"


def read(path: Path) -> Document:
    """Read one file; InputError with the line for a missing file, a syntax error or a duplicate key."""
    try:
        parsed = yaml_lines.parse(read_text(path, "the devices"))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"{path}:{line}: not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path}:1: not YAML: {error}") from error
    if parsed.mistakes:
        raise InputError("\n".join(f"{path}:{mistake.line}: {mistake.text}" for mistake in parsed.mistakes))
    return Document(path, parsed.value, parsed)
