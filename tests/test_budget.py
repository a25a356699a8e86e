"""The checks of the style budget find violations."""

import importlib.machinery
import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts/budget"


@pytest.fixture(scope="module")
def budget():
    loader = importlib.machinery.SourceFileLoader("budget", str(SCRIPT))
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
        "1 class names stand in two modules, at most 0: Part",
    ]
