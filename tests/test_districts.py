"""docs/architecture.md lists the districts and rooms, each of which imports only earlier ones; what one module does.

In a container with two of a machine's 256 cores, another count would start 256 threads; a pickle runs code of who wrote
it, and a cache may be shared; ninja has its own terminal; the module of stubs is a step of a build and imports nothing.
"""

import ast
import importlib.machinery
import importlib.util
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


def test_every_district_and_room_is_listed_once_and_what_is_imported_stands_earlier():
    assert set(DISTRICTS) == {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in modules()} - DOORS
    for district in DISTRICTS[:-1]:
        inside = {path.name.removesuffix(".py") for path in (PACKAGE / district).iterdir()}
        assert sorted(ROOMS[district]) == sorted(inside - {"__init__", "__pycache__"}), district
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {'.'.join(place)}"
        for path in modules()
        if (own := parts(path))[0] in DISTRICTS
        for place in imported(path)
        if place[0] in DISTRICTS and order(place) > order(own)
    ]
    assert wrong == []


def order(place):
    """Where a module stands: its district, and its room in it. A command may import any other module of `cli`."""
    district, room = (*place, "")[:2]
    rooms = ROOMS[district] if district != DISTRICTS[-1] else []
    return DISTRICTS.index(district), rooms.index(room) if room in rooms else 0


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


@pytest.fixture(scope="module")
def budget():
    loader = importlib.machinery.SourceFileLoader("budget", f"{ROOT}/scripts/budget")
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("budget", loader))
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import json\nprint(json)\n", "the import calls print"),
        ("from pathlib import Path\nTEXT = Path('x').read_text()\n", "the import calls Path('x').read_text"),
        ("SEEN = []\ndef f(x):\n    SEEN.append(x)\n", "f changes the module's SEEN"),
        ("SEEN = {}\ndef f(x):\n    SEEN[x] = 1\n", "f changes the module's SEEN"),
        ("count = 0\ndef f():\n    global count\n    count += 1\n", "a function changes the module's count"),
        ("app.add_typer(other)\nscenario_app.command()(f)\n", ""),
        ("WORDS = {'a': 1}\ndef f():\n    return WORDS['a']\n", ""),
        ("names = []\ndef f():\n    names = []\n    names.append(1)\n", ""),
        ("READ = lambda path: path.read_text()\n", ""),
    ],
)
def test_effects_and_state_of_an_import(budget, tmp_path, source, said):
    (tmp_path / "module.py").write_text(source)
    found = "\n".join(budget.import_effects(tmp_path / "module.py"))
    assert said in found and bool(said) == bool(found)


def test_functions_of_cpp(budget, tmp_path):
    (tmp_path / "x.cpp").write_text(
        "namespace n {\nstruct A : B {\n    A() : x(1), y{2} {}\n    int f(int a) const override {\n        // {\n"
        '        if (a) {\n            g("}");\n        }\n        return a;\n    }\n};\nint table[] = {1, 2};\n}\n'
    )
    found = {place.split()[-1]: length for place, length in budget.cpp_functions(tmp_path / "x.cpp")}
    assert found["f"] == 4
    assert "table" not in found


def test_totals_of_lines_and_names(budget, tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "MOST", {"docs/**/*.md": 2, "fattn_probe/**/*.py": 10})
    monkeypatch.setattr(budget, "TWICE", 0)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/page.md").write_text("a\nb\nc\n")
    (tmp_path / "fattn_probe").mkdir()
    for name in ("one", "two"):
        (tmp_path / f"fattn_probe/{name}.py").write_text("class Part: ...\n")
    assert list(budget.totals(tmp_path)) == [
        "docs/**/*.md: 3 lines, at most 2",
        "1 class names are in two modules, at most 0: Part",
    ]
