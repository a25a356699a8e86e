"""The mutation tester's list: every explained line stands in a module that it changes (cosmic-ray is not needed)."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests/mutants"


def test_every_explained_line_stands_in_a_module_that_is_changed():
    patterns = re.findall(r'"(fattn_probe/[^"]+)"', (FOLDER / "__main__.py").read_text())
    modules = {path for pattern in patterns for path in ROOT.glob(pattern)}
    assert {path.parent.name for path in modules} == {"base", "judge", "measure", "error_model"}
    assert (
        "measure/limits" in (ROOT / "CONTRIBUTING.md").read_text()
        and (ROOT / "fattn_probe/verdict/measure/limits.py").is_file()
    )
    for entry in yaml.safe_load((FOLDER / "equivalent.yaml").read_text()):
        path = ROOT / entry["in"]
        assert path in modules, entry["in"]
        lines = [line.strip() for line in path.read_text().splitlines()]
        assert not [mutant["was"] for mutant in entry["mutants"] if mutant["was"] not in lines], entry["in"]
