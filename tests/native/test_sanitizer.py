"""What `scripts/nightly sanitizers` runs is compiled for the sanitizer, and nothing else is."""

import subprocess

import pytest

from tests.native.sanitizer import SANITIZER

pytestmark = pytest.mark.build
CALLS = {"thread": "__tsan_init", "address": "__asan_init", "undefined": "__ubsan_handle_type_mismatch_v1_abort"}
"""What the code that g++ compiles for each calls, and the simulator's own checker does not define."""


def test_the_simulator_is_compiled_for_the_sanitizer(programs):
    program = programs["semantics", "release"].path
    said = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1].partition("@")[0] for line in said.splitlines()}
    assert {name for name, call in CALLS.items() if call in names} == ({SANITIZER} if SANITIZER else set())
