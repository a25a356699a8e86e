"""Programs to debug, compiled once per session, and the debugger; if it is required, its absence is a failure."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def require(program):
    """Skip without a program, unless `FATTN_PROBE_REQUIRE` names it."""
    if shutil.which(program) is None:
        if program in os.environ.get("FATTN_PROBE_REQUIRE", "").split(","):
            pytest.fail(f"{program} is required and not on this machine")
        pytest.skip(f"{program} is not on this machine")


def compiled(folder, name, *flags):
    require("g++")
    program = folder / name
    source = Path(__file__).with_name(f"{name}.cpp")
    subprocess.run(["g++", "-O0", "-g", "-w", *flags, source, "-o", program], check=True)
    return program


@pytest.fixture(scope="session")
def gdb():
    """The debugger's command line."""
    require("gdb")
    return ["gdb"]


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="session")
def probe(programs):
    return compiled(programs, "probe")


@pytest.fixture(scope="session")
def values_program(programs):
    return compiled(programs, "values", "-no-pie")


@pytest.fixture(scope="session")
def launch(programs):
    return compiled(programs, "launch", "-std=c++17")
