"""The options of a tree's `test-backend-ops`, read from its usage text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fattn_probe.base.errors import BuildError, InputError
from fattn_probe.base.process import run
from fattn_probe.base.regex import compiled

OP = "FLASH_ATTN_EXT"
HELP_SECONDS = 30.0
Mode = Literal["test", "perf", "support"]


@dataclass(frozen=True)
class OpsOptions:
    """The modes and options of one `test-backend-ops`."""

    modes: frozenset[str]
    flags: frozenset[str]

    @property
    def workers(self) -> bool:
        """Whether cases can run in parallel (-j)."""
        return "-j" in self.flags


def probe_options(help_text: str) -> OpsOptions:
    """Parse a usage text; BuildError with its beginning if it is not one."""
    if "Usage:" not in help_text or "-o <op" not in help_text:
        raise BuildError(f"not the usage text of test-backend-ops:\n{help_text.strip()[:400]}")
    modes = re.findall(r"^\s*(?:- )?(test|grad|perf|support)\b", help_text, re.MULTILINE)
    flags = re.findall(r"(?:^\s*|\[)(--?[a-z][a-z-]*)(?=[ \]\n])", help_text, re.MULTILINE)
    return OpsOptions(frozenset(modes), frozenset(flags))


def ask_options(program: Path, env: dict[str, str]) -> OpsOptions:
    """Run `program --help`; older eras reject --help and print their usage with exit code 1."""
    done = run([program, "--help"], env=env, timeout=HELP_SECONDS, failure=None)
    return probe_options(done.stdout + done.stderr)


def plan_ops(
    options: OpsOptions,
    mode: Mode,
    backend: str,
    only: str | Sequence[str] | None = None,
    *,
    workers: int = 1,
) -> tuple[str, ...]:
    """The arguments (without the program) that run FLASH_ATTN_EXT on one backend.

    `only` is one or several complete cases (`FLASH_ATTN_EXT(hsk=64,...)`), or a regular expression searched in the
    parameters. InputError for options that this era lacks, except `workers`: without -j there is only one.
    """
    if mode not in options.modes:
        raise InputError(f"mode {mode!r}: this test-backend-ops only has {', '.join(sorted(options.modes))}")
    pattern = only if isinstance(only, str) and not only.startswith(f"{OP}(") else ""
    cases = [only] if isinstance(only, str) and not pattern else [] if isinstance(only, str) else only or []
    words = [mode, "-b", backend, "-o", ",".join(case for case in cases if case) or OP]
    if pattern:
        if "-p" not in options.flags:
            raise InputError(f"--filter {pattern!r}: this source's test-backend-ops has no -p")
        words += ["-p", compiled(pattern, "--filter").pattern]
    if mode == "test" and options.workers and workers > 1:
        words += ["-j", str(workers)]
    return tuple(words)
