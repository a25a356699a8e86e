"""Safe YAML that remembers the line of every key and value."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fattn_probe.base.errors import InputError
from fattn_probe.base.files import read_text

MAX_NODES = 20_000
MAX_DEPTH = 50
TOO_MUCH = f"too many or too deeply nested values, allowed: {MAX_NODES} values, {MAX_DEPTH} deep"
Key = tuple[str | int, ...]
OTHER_IN_1_2 = re.compile(r"[-+]?(0[0-7_]*[0-7]|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
"""Numbers that PyYAML (YAML 1.1) reads in base 8 or 60, unlike YAML 1.2."""


class _Loader(yaml.SafeLoader):
    """A SafeLoader with limits on size and depth, which reads 1e-5 as a number, as YAML 1.2 does.

    The composer recurses once per level, so the limit stops it before Python's stack overflows. An alias costs nothing
    here; it is counted when its value is constructed.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:  # noqa: ANN401 (as in yaml)
        """A node and everything below it."""
        self._depth, self._nodes = self._depth + 1, self._nodes + 1
        if self._depth > MAX_DEPTH or self._nodes > 2 * MAX_NODES:  # keys are nodes too
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=TOO_MUCH, problem_mark=mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


_Loader.yaml_implicit_resolvers = {key: list(value) for key, value in yaml.SafeLoader.yaml_implicit_resolvers.items()}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


@dataclass
class YamlDocument:
    """A file's value, the line (counted from 1) of every key, and its mistakes: valid YAML that is not allowed here."""

    value: Any = None
    lines: dict[Key, int] = field(default_factory=dict)
    mistakes: list[tuple[int, str]] = field(default_factory=list)

    def line(self, key: Key) -> int:
        """The line of a key, or of its nearest parent."""
        while key and key not in self.lines:
            key = key[:-1]
        return self.lines.get(key, 1)


def read(path: Path, what: str) -> YamlDocument:
    """A file without mistakes; `what` names it in messages. InputError lists the mistakes, each with its line."""
    document = parse(read_text(path, what), str(path))
    if document.mistakes:
        raise InputError("\n".join(f"{path}:{line}: {text}" for line, text in document.mistakes))
    return document


def parse(text: str, name: str) -> YamlDocument:
    """Parse a YAML document; InputError with the file's `name` and the line if it is invalid."""
    document = YamlDocument()
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is not None:
                document.value = _value(loader, node, (), document)
                document.lines.setdefault((), node.start_mark.line + 1)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise InputError(f"{name}:{line}: not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{name}:1: not YAML: {' '.join(str(error).split())}") from None
    return document


def _value(loader: _Loader, node: yaml.Node, key: Key, document: YamlDocument) -> object:
    document.lines.setdefault(key, node.start_mark.line + 1)
    if len(document.lines) > MAX_NODES or len(key) > MAX_DEPTH:
        raise yaml.MarkedYAMLError(problem=TOO_MUCH, problem_mark=node.start_mark)
    if isinstance(node, yaml.SequenceNode):
        return [_value(loader, item, (*key, number), document) for number, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        return _mapping(loader, node, key, document)
    return _scalar(loader, node, key, document)


def _mapping(loader: _Loader, node: yaml.MappingNode, key: Key, document: YamlDocument) -> dict[str, object]:
    made: dict[str, object] = {}
    for name_node, value_node in node.value:
        if not isinstance(name_node, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(problem="a list or a mapping as a key", problem_mark=name_node.start_mark)
        name = str(name_node.value)
        line = name_node.start_mark.line + 1
        dotted = ".".join(map(str, (*key, name)))
        if name_node.tag == "tag:yaml.org,2002:merge":
            said = "merge keys are not supported: write out each key, or use an alias for a whole value"
            document.mistakes.append((line, f"{dotted}: {said}"))
            continue
        if name in made:
            first = document.lines[(*key, name)]
            document.mistakes.append((line, f"{dotted}: given twice, first on line {first}, allowed: once"))
            continue
        document.lines[(*key, name)] = line
        made[name] = _value(loader, value_node, (*key, name), document)
    return made


def _scalar(loader: _Loader, node: yaml.Node, key: Key, document: YamlDocument) -> object:
    """The value of a scalar; dates stay text. yaml.YAMLError if its tag is unknown or does not fit.

    A number that YAML 1.1 and 1.2 read differently is recorded as a mistake.
    """
    if node.tag == "tag:yaml.org,2002:timestamp":
        return node.value
    try:
        value = loader.construct_object(node)
    except ValueError as error:
        raise yaml.MarkedYAMLError(problem=f"{node.value!r}: {error}", problem_mark=node.start_mark) from error
    if isinstance(value, int | float) and OTHER_IN_1_2.fullmatch(node.value):
        said = f"found {node.value[:60]}, which YAML 1.1 and 1.2 read differently, allowed: a decimal number"
        dotted = ".".join(map(str, key)) or "the file"
        document.mistakes.append((node.start_mark.line + 1, f"{dotted}: {said} without leading zeros or colons"))
    return value
