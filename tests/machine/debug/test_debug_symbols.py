import subprocess

import pytest

from fattn_probe.base.errors import BuildError
from fattn_probe.machine.debug.session import require_debug_info, section_names


def test_a_program_with_debug_information(probe):
    require_debug_info(probe)
    assert {".text", ".debug_info", ".shstrtab"} <= section_names(probe.read_bytes())


@pytest.mark.parametrize("options", [[], ["-g"]])
def test_a_stripped_program_is_recognised(probe, tmp_path, options):
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", *options, "-o", stripped, probe], check=True)
    with pytest.raises(BuildError, match=r"stripped has no debug information.*fattn-probe build --debug") as caught:
        require_debug_info(stripped)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(("flags", "found"), [(["-g0"], False), (["-g"], True), (["-g", "-gz"], True)])
def test_a_library(probe, tmp_path, flags, found):
    library = tmp_path / "liblast.so"
    (tmp_path / "last.cpp").write_text("int last() { return 1; }\n")
    subprocess.run(["g++", *flags, "-shared", "-fPIC", tmp_path / "last.cpp", "-o", library], check=True)
    assert (".debug_info" in section_names(library.read_bytes())) == found


@pytest.mark.parametrize(
    "text", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + 60 * b"\0", b"\x7fELF\x02\x01" + 60 * b"\0"]
)
def test_files_that_are_not_programs(tmp_path, text):
    (tmp_path / "file").write_bytes(text)
    with pytest.raises(BuildError, match="file has no debug information"):
        require_debug_info(tmp_path / "file")
