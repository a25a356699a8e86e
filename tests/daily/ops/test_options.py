from pathlib import Path

import pytest

from fattn_probe.base.errors import BuildError, InputError
from fattn_probe.daily.ops.options import ask_options, plan_ops, probe_options

ERA_A = (Path(__file__).parent / "usage_a.txt").read_text()
EARLY_C = ERA_A.replace("[--show-coverage]", "[--show-coverage] [--test-file <path>]")
LATE_C = (Path(__file__).parent / "usage_c.txt").read_text()


@pytest.mark.parametrize(
    ("text", "workers", "test_file"), [(ERA_A, False, False), (EARLY_C, False, True), (LATE_C, True, True)]
)
def test_the_options_of_each_era_are_read(text, workers, test_file):
    options = probe_options(text)
    assert options.modes == {"test", "grad", "perf", "support"}
    assert {"-o", "-b", "-p", "--output"} <= options.flags
    assert (options.workers, "--test-file" in options.flags) == (workers, test_file)


def test_another_program_is_refused():
    with pytest.raises(BuildError, match="not the usage text"):
        probe_options("usage: ls")


def test_plans():
    old, new = probe_options(ERA_A), probe_options(LATE_C)
    start = ("-b", "CUDA0", "-o", "FLASH_ATTN_EXT")
    assert plan_ops(new, "test", "CUDA0", workers=8) == ("test", *start, "-j", "8")
    assert plan_ops(old, "test", "CUDA0", workers=8) == ("test", *start)
    assert plan_ops(new, "perf", "CUDA0", "hsk=64", workers=8) == ("perf", *start, "-p", "hsk=64")
    assert plan_ops(new, "test", "CPU", "FLASH_ATTN_EXT(hsk=64)") == (
        "test",
        "-b",
        "CPU",
        "-o",
        "FLASH_ATTN_EXT(hsk=64)",
    )


def test_plans_that_an_era_cannot_do():
    with pytest.raises(InputError, match="--filter"):
        plan_ops(probe_options(ERA_A), "test", "CUDA0", "hsk=(64")
    with pytest.raises(InputError, match="mode 'support'"):
        plan_ops(probe_options(ERA_A.replace("- support", "")), "support", "CUDA0")


def test_usage_printed_for_an_unknown_help_flag(tmp_path):
    program = tmp_path / "test-backend-ops"
    program.write_text(f"#!/bin/sh\ncat <<'EOF'\n{EARLY_C}EOF\nexit 1\n")
    program.chmod(0o755)
    assert "--test-file" in ask_options(program, {}).flags
