"""What `profile` makes of its words and flags."""

from pathlib import Path

import pytest

from tests.as_user import fattn_probe

THREADS, FAULTY = (Path(__file__).with_name(name) for name in ("threads.cu", "faulty.cu"))
"""The first ends well if the simulator has as many threads as its argument says, the second with an argument only."""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("PROGRAM --source git:master", "--source is for scenarios; PROGRAM is a program"),
        (
            "PROGRAM --patch fault-stream-k-seam --quants all",
            "--patch, --quants are for scenarios; PROGRAM is a program",
        ),
        ("gqa PROGRAM", "is a program: profile programs one at a time, without scenarios"),
        ("gqa decod", "decod: no such file"),
        ("gqa decod", "did you mean decode?"),
    ],
)
def test_words_are_scenarios_or_one_program_without_flags_of_a_build(words, message):
    command = words.replace("PROGRAM", str(THREADS)).split()
    said = fattn_probe("profile", *command, "--on", "sim:h200", code=2).stderr
    assert message.replace("PROGRAM", str(THREADS)) in " ".join(said.split())


@pytest.mark.build
def test_a_program_has_its_arguments_and_threads():
    fattn_probe("profile", THREADS, "--on", "sim:h200", "--threads", "3", "--", "3")
    said = fattn_probe("profile", THREADS, "--on", "sim:h200", "--threads", "2", "--", "3", code=4).stderr
    assert "exit status 1" in said


@pytest.mark.build
def test_all_scenarios_are_profiled():
    said = fattn_probe("profile", "gqa", "decode", "--on", "sim:h200").stdout
    assert "gqa: flash_attn_ext_f16<" in said and "decode: flash_attn_ext_vec<" in said


@pytest.mark.build
def test_a_finding_and_a_program_without_kernels_are_said():
    done = fattn_probe("profile", FAULTY, "--on", "sim:h200", "--", "fault", code=5)
    assert "out-of-bounds" in done.stderr and "faulty.cu:3" in done.stderr
    said = fattn_probe("profile", FAULTY, "--on", "sim:h200").stdout
    assert "hello" in said and "faulty.cu: no kernel was launched" in " ".join(said.split())
