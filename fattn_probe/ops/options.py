"""The options of a tree's `test-backend-ops`, read from its usage text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fattn_probe.errors import BuildError, InputError
from fattn_probe.process import run

OP = "FLASH_ATTN_EXT"
HELP_SECONDS = 30.0
Mode = Literal["test", "perf", "support"]
MODES: tuple[Mode, ...] = ("test", "perf", "support")


@dataclass(frozen=True)
class Options:
    """The modes and options of one `test-backend-ops`."""

    modes: frozenset[str]
    flags: frozenset[str]

    @property
    def workers(self) -> bool:
        """Whether cases can run in parallel (-j)."""
        return "-j" in self.flags

    @property
    def test_file(self) -> bool:
        """Whether cases can be read from a file (--test-file), also for perf and support."""
        return "--test-file" in self.flags


def probe_options(help_text: str) -> Options:
    """Parse a usage text; BuildError with its beginning if it is not one."""
    if "Usage:" not in help_text or "-o <op" not in help_text:
        raise BuildError(f"not the usage text of test-backend-ops:\n{help_text.strip()[:400]}")
    modes = re.findall(r"^\s*(?:- )?(test|grad|perf|support)\b", help_text, re.MULTILINE)
    flags = re.findall(r"(?:^\s*|\[)(--?[a-z][a-z-]*)(?=[ \]\n])", help_text, re.MULTILINE)
    return Options(frozenset(modes), frozenset(flags))


def ask_options(program: Path, env: dict[str, str]) -> Options:
    """Run `program --help`; older eras reject --help and print their usage with exit code 1."""
    done = run([program, "--help"], env=env, timeout=HELP_SECONDS, failure=None)
    return probe_options(done.stdout + done.stderr)


def plan_ops(
    options: Options,
    mode: Mode,
    backend: str,
    only: str | Sequence[str] | None = None,
    *,
    workers: int = 1,
    test_file: Path | None = None,
) -> tuple[str, ...]:
    """The arguments (without the program) that run FLASH_ATTN_EXT on one backend.

    `only` is one or several complete cases (`FLASH_ATTN_EXT(hsk=64,...)`), or a regular expression searched in the
    parameters. InputError for options that this era lacks, except `workers`: without -j there is one.
    """
    if mode not in options.modes:
        raise InputError(f"mode {mode!r}: this test-backend-ops only has {', '.join(sorted(options.modes))}")
    pattern = only if isinstance(only, str) and not only.startswith(f"{OP}(") else ""
    cases = [only] if isinstance(only, str) and not pattern else [] if isinstance(only, str) else only or []
    words = [mode, "-b", backend, "-o", ",".join(case for case in cases if case) or OP]
    if pattern:
        words += ["-p", _valid(pattern, options)]
    if test_file is not None:
        if not options.test_file:
            raise InputError(f"{test_file}: this source's test-backend-ops cannot read cases from a file (--test-file)")
        words += ["--test-file", str(test_file)]
    if mode == "test" and options.workers and workers > 1:
        words += ["-j", str(workers)]
    return tuple(words)


def _valid(pattern: str, options: Options) -> str:
    if "-p" not in options.flags:
        raise InputError(f"--filter {pattern!r}: this source's test-backend-ops has no -p")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"--filter {pattern!r}: {error}") from error
    return pattern
