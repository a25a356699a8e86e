"""docs/architecture.md lists the districts and rooms, each of which imports only earlier ones; what one module does.

A container with two cores of a machine with 256 would start 256 threads if another module counted them; a pickle runs
code of who wrote it, and a cache may be shared; ninja has a terminal of its own, and the module of stubs is a step of a
build, which imports nothing.
"""

import ast
import re

import pytest

from tests.made import ROOT

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


USERS = {
    r"\b(import|from) hashlib\b": {"fattn_probe/base/digest.py"},
    "<svg": {"fattn_probe/base/view/svg.py"},
    r"rich\.table|rich import.*table": {"fattn_probe/base/tables.py"},
    r"\bcpu_count\(|len\(os\.sched_getaffinity": {"fattn_probe/base/host.py"},
    r"^[^#\"]*(multiprocessing|ProcessPool|ThreadPool|os\.fork)": {"fattn_probe/base/workers.py"},
    r"^[^#\"]*import subprocess": {
        *("fattn_probe/base/process.py", "fattn_probe/llama/build/ninja.py", "fattn_probe/llama/build/stubs.py"),
        *("fattn_probe/lab/detect/schema.py", "scripts/agreement", "scripts/nightly"),
    },
    r"\b(import|from) (c?pickle|cloudpickle|marshal|shelve|dill)": {"fattn_probe/daily/regress/cluster.py"},
}


@pytest.mark.parametrize("pattern", USERS)
def test_one_module_does_it(pattern):
    texts = [path for path in [*modules(), *PACKAGE.rglob("*.j2"), *(ROOT / "scripts").rglob("*")] if path.is_file()]
    texts = [path for path in texts if path.suffix in ("", ".py", ".j2")]
    users = {path for path in texts if re.search(pattern, path.read_text(), re.MULTILINE)}
    assert {str(path.relative_to(ROOT)) for path in users} == USERS[pattern]
