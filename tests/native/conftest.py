"""The tests' programs, compiled once."""

from pathlib import Path

import pytest

from tests.native.cuda_program import FLAVOURS, SANITIZED, Program, compile_programs

PROGRAMS = {
    "release": ("faults", "limits", "mutants", "semantics", "ahead"),
    "check": ("faults", "limits", "order", "races", "semantics", "ahead"),
    SANITIZED: (SANITIZED,),
}


class Programs(dict):
    """Programs by name and flavour; those of a flavour are compiled when one is used."""

    def __missing__(self, pair):
        _, flavour = pair
        texts = {name: Path(__file__).with_name(f"{name}.cu").read_text() for name in PROGRAMS[flavour]}
        paths = compile_programs({f"{name}.cu": text for name, text in texts.items()}, flavour)
        for (name, text), path in zip(texts.items(), paths, strict=True):
            self[name, flavour] = Program(path, text)
        return self[pair]


@pytest.fixture(scope="session")
def programs():
    return Programs()


@pytest.fixture(params=FLAVOURS)
def flavour(request):
    return request.param
