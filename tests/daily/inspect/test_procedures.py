"""Procedures that run inside a debugger import only the standard library."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fattn_probe.daily.inspect import procedures
from fattn_probe.daily.inspect.procedures.blocks import BlockReader
from fattn_probe.machine.debug.protocol import StopRecord
from tests.made import ROOT

MODULES = [path.stem for path in Path(procedures.__file__).parent.glob("*.py")]


@pytest.mark.parametrize("module", MODULES)
def test_a_procedure_needs_the_standard_library_alone(module):
    name = "fattn_probe.daily.inspect.procedures" + ("" if module == "__init__" else f".{module}")
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {name}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_block_is_read_once_where_two_breakpoints_are_at_one_place():
    """The line of a branch that is not compiled is the next line that is (the tile kernel, several heads)."""
    values = {"sequence": "3", "simt::blockIdx": "{x = 1, y = 0, z = 2}"}
    debugger = SimpleNamespace(evaluate=lambda asked: [values[name] for name in asked])
    reader = BlockReader({4: "tile_block", 7: "tile_block"})
    found = reader.first(debugger, StopRecord("breakpoint", (4, 7)), ("sequence",))
    assert found == {"sequence": 3, "at": "tile_block", "blockIdx": [1, 0, 2]}
