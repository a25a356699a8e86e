"""Procedures that run inside a debugger import only the standard library."""

import subprocess
import sys
from pathlib import Path

import pytest

from fattn_probe.daily.inspect import procedures
from tests.made import ROOT

MODULES = [path.stem for path in Path(procedures.__file__).parent.glob("*.py")]


@pytest.mark.parametrize("module", MODULES)
def test_a_procedure_needs_the_standard_library_alone(module):
    name = "fattn_probe.daily.inspect.procedures" + ("" if module == "__init__" else f".{module}")
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {name}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
