"""The mutants of a module: its source with one small change each.

Left out is what does not decide anything: annotations, the text of messages (f-strings), decorators, and the keywords
in SILENT, which say how a dataclass is shown or that two lists are as long.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import parso
from cosmic_ray.ast import Visitor
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.boolean_replacer import AddNot
from cosmic_ray.operators.operator import Operator

from fattn_probe.base.workers import Tell
from tests.mutants.operators import operators

SILENT = {"repr", "compare", "init", "strict", "frozen", "eq"}
BLOCKS = {"file_input", "suite"}


@dataclass(frozen=True)
class Mutant:
    """A changed module.

    `was` and `now` are the changed lines without their indentation. `lines` are those whose run brings the change to
    light, `names` what a statement of the module itself assigns, None inside a function.
    """

    module: str
    line: int
    was: str
    now: str
    source: str
    lines: range
    names: tuple[str, ...] | None

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.was}\n    -> {self.now}"


def mutants_of(module: str, root: Path) -> list[Mutant]:
    """All mutants of a module (`fattn_probe/base/arrays.py`), by line."""
    parts = [child.get_code() for child in parso.parse((root / module).read_text()).children]
    found: dict[str, Mutant] = {}
    for number, part in enumerate(parts):  # cosmic-ray parses what it changes each time, so it gets one statement
        for node, changed in _changes(part):
            before, after = "".join(parts[:number]), "".join(parts[number + 1 :])
            found.setdefault(before + changed + after, _mutant(module, node, (before, part, after), changed))
    return sorted(found.values(), key=lambda mutant: mutant.line)


@contextmanager
def finding(tell: Tell, root: Path) -> Iterator[Callable[[str], list[Mutant]]]:
    """A worker process's function: the mutants of a module."""
    yield partial(mutants_of, root=root)


def _changes(source: str) -> Iterator[tuple[Any, str]]:
    """The changes of one statement: the node, and the statement with it."""
    tree = parso.parse(source)
    for operator in operators():
        for occurrence, node in enumerate(_places(tree, operator)):
            if decides(node) and not _is_said_otherwise(node, operator):
                changed = mutate_code(source, operator, occurrence)
                if changed is not None and changed != source:
                    yield node, changed


def _is_said_otherwise(node: Any, operator: Operator) -> bool:
    """Whether another operator makes the same change: that of a comparison, or of a `not`."""
    if not isinstance(operator, AddNot):
        return False
    return node.children[2 if node.type == "test" else 1].type in {"comparison", "not_test"}


class _Nodes(Visitor):
    """Keeps the nodes that an operator changes, in its order."""

    def __init__(self, operator: Operator) -> None:
        self.operator, self.nodes = operator, list[Any]()

    def visit(self, node: Any) -> Any:
        """Look at a node."""
        self.nodes.extend(node for _ in self.operator.mutation_positions(node))
        return node


def _places(tree: Any, operator: Operator) -> list[Any]:
    visitor = _Nodes(operator)
    visitor.walk(tree)
    return visitor.nodes


def decides(node: Any) -> bool:
    """Whether a change of a node may change what the program does."""
    for child, parent in _upwards(node):
        if parent.type in {"fstring", "decorator", "import_from", "import_name"}:
            return False
        if parent.type == "argument" and parent.children[0].type == "name" and parent.children[0].value in SILENT:
            return False
        if parent.type in {"parameters", "param"} and child.type == "operator":  # the star of a signature
            return False
        if parent.type in {"funcdef", "param"} and child is getattr(parent, "annotation", None):
            return False
        if parent.type in {"annassign", "tfpdef"} and child is parent.children[1 if parent.type == "annassign" else -1]:
            return False
    return True


def _upwards(node: Any) -> Iterator[tuple[Any, Any]]:
    while node.parent is not None:
        yield node, node.parent
        node = node.parent


def _mutant(module: str, node: Any, parts: tuple[str, str, str], changed: str) -> Mutant:
    before, source, after = parts
    passed, old, new = before.count("\n"), source.splitlines(), changed.splitlines()
    first = next(i for i, (was, now) in enumerate(zip(old, new, strict=False)) if was != now)
    statement = next((child for child, parent in _upwards(node) if parent.type in BLOCKS), node)
    inside = any(parent.type == "funcdef" and child is parent.children[-1] for child, parent in _upwards(node))
    names = None if inside else tuple(name.value for name in _assigned(statement))
    lines = range(passed + statement.start_pos[0], passed + max(node.end_pos[0], first + 1) + 1)
    whole = before + changed + after
    return Mutant(module, passed + first + 1, old[first].strip(), new[first].strip(), whole, lines, names)


def _assigned(statement: Any) -> Iterator[Any]:
    for child in getattr(statement, "children", []):
        if child.type == "expr_stmt":
            yield from child.get_defined_names()
