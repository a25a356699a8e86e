"""docs/architecture.md lists the districts and their rooms, in an order in which each imports only earlier ones."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fattn_probe"
TABLE = re.search(r"\| district \|.*?\n\n", (ROOT / "docs/architecture.md").read_text(), re.DOTALL)
assert TABLE is not None
ROWS = [[re.findall(r"`(\w+)`", cell) for cell in line.split("|")[1:3]] for line in TABLE[0].splitlines()[2:-1]]
ROOMS = {district: rooms for (district,), rooms in ROWS}
DISTRICTS = list(ROOMS)
DOORS = {"__init__", "__main__", "pytest_plugin"}


def parts(path):
    """A module's place in the package: (`cases`, `op`, `values`)."""
    names = path.relative_to(PACKAGE).with_suffix("").parts
    return names[:-1] if names[-1] == "__init__" and len(names) > 1 else names


def imported(path):
    """The modules of the package that a module imports, as places."""
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
        yield from (tuple(name.split(".")[1:]) for name in names if name.startswith("fattn_probe."))


def modules():
    return [path for path in PACKAGE.rglob("*.py") if "native" not in path.parts]


def test_every_district_and_room_is_listed_once():
    there = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in modules()}
    assert set(DISTRICTS) == there - DOORS
    for district in DISTRICTS[:-1]:
        inside = {path.name.removesuffix(".py") for path in (PACKAGE / district).iterdir()}
        assert sorted(ROOMS[district]) == sorted(inside - {"__init__", "__pycache__"}), district


def order(place):
    """Where a module stands: its district, and its room in it. A command may import any other module of `cli`."""
    district, room = (*place, "")[:2]
    rooms = ROOMS[district] if district != DISTRICTS[-1] else []
    return DISTRICTS.index(district), rooms.index(room) if room in rooms else 0


def test_what_is_imported_stands_earlier():
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {'.'.join(place)}"
        for path in modules()
        if (own := parts(path))[0] in DISTRICTS
        for place in imported(path)
        if place[0] in DISTRICTS and order(place) > order(own)
    ]
    assert wrong == []
