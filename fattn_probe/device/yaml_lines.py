"""YAML that remembers the line of every key, so that a mistake can be shown where it stands."""

from dataclasses import dataclass, field
from pathlib import Path

import yaml

from fattn_probe.errors import InputError

Key = tuple[str, ...]
Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]


@dataclass(frozen=True)
class Document:
    """One YAML file: its plain data, and the line (from 1) of each key path."""

    path: Path
    data: Value
    lines: dict[Key, int] = field(repr=False)

    def where(self, *key: str) -> str:
        """`file:line` of a key, or of its nearest parent that the file has."""
        while key and key not in self.lines:
            key = key[:-1]
        return f"{self.path}:{self.lines.get(key, 1)}"


def read(path: Path) -> Document:
    """Read one YAML file; a missing file, a syntax error or a key given twice is an InputError with its line."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"{path}:{line}: not YAML: {error.problem}") from error
    lines: dict[Key, int] = {}
    return Document(path, None if node is None else _plain(node, (), path, lines), lines)


def _plain(node: yaml.Node, key: Key, path: Path, lines: dict[Key, int]) -> Value:
    lines.setdefault(key, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, key, path, lines)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*key, str(index)), path, lines) for index, item in enumerate(node.value)]
    try:
        loaded = yaml.SafeLoader("").construct_object(node)
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path}:{node.start_mark.line + 1}: {'.'.join(key)}: {node.value!r}: {error}") from error
    return loaded if isinstance(loaded, bool | int | float) or loaded is None else str(node.value)


def _mapping(node: yaml.MappingNode, key: Key, path: Path, lines: dict[Key, int]) -> dict[str, Value]:
    result: dict[str, Value] = {}
    for name_node, value_node in node.value:
        name, line = str(name_node.value), name_node.start_mark.line + 1
        if name in result:
            raise InputError(f"{path}:{line}: {name}: given twice, first in line {lines[(*key, name)]}")
        lines[(*key, name)] = line
        result[name] = _plain(value_node, (*key, name), path, lines)
    return result
