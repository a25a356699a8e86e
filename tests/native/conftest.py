"""The simulator and the tests' programs, compiled once a session."""

from pathlib import Path

import pytest

from tests.native.cuda_program import FLAVOURS, SANITIZED, Compiler

PROGRAMS = [(name, flavour) for name in ("faults", "semantics") for flavour in FLAVOURS]
PROGRAMS += [(SANITIZED, SANITIZED), ("ahead", "release")]


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """Programs by name and flavour."""
    texts = {pair: Path(__file__).with_name(f"{pair[0]}.cu").read_text() for pair in PROGRAMS}
    return Compiler(tmp_path_factory.mktemp("programs")).prepare(texts)


@pytest.fixture(params=FLAVOURS)
def flavour(request):
    return request.param
