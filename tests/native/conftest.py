"""The simulator and the tests' programs, compiled once a session."""

from pathlib import Path

import pytest
from cuda_program import FLAVOURS, Compiler

PROGRAMS = ("faults", "semantics")


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """Programs by name and flavour."""
    texts = {name: Path(__file__).with_name(f"{name}.cu").read_text() for name in PROGRAMS}
    return Compiler(tmp_path_factory.mktemp("programs")).prepare(texts)


@pytest.fixture(params=FLAVOURS)
def flavour(request):
    return request.param
