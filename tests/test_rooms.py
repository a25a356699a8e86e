"""docs/architecture.md lists every room of the package, in an order in which a room imports only earlier ones."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fattn_probe"
TABLE = re.search(r"\| room \|.*?\n\n", (ROOT / "docs/architecture.md").read_text(), re.DOTALL)
assert TABLE is not None
ROOMS = [name for line in TABLE[0].strip().splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])]
AT_ANY_TIME = {"cli.py", "flags.py", "__main__.py"}


def room_of(module):
    """The room of a module of the package: `fattn_probe.op.values` is in `op`."""
    return module.split(".")[1]


def imported(path):
    """The rooms that a module imports from."""
    package = ["fattn_probe", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, (base, node.module)))
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (room_of(name) for name in names if name.startswith("fattn_probe."))


def modules():
    return [path for path in PACKAGE.rglob("*.py") if "native" not in path.parts]


def test_every_room_is_listed_once():
    there = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in modules()}
    assert sorted(ROOMS) == sorted(there - {"__init__", "__main__"} | {"native"})


def test_a_room_imports_only_earlier_ones():
    known = set(ROOMS)
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {room}"
        for path in modules()
        if path.name not in AT_ANY_TIME
        for own in [path.relative_to(PACKAGE).parts[0].removesuffix(".py")]
        for room in imported(path)
        if own in known and room in known and ROOMS.index(room) > ROOMS.index(own)
    ]
    assert wrong == []
