"""A CUDA program: its file, the headers of its own that it includes, and how to compile it."""

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fattn_probe.cxx.includes import INCLUDE, included
from fattn_probe.cxx.tokens import Draft, draft_of, tokenize
from fattn_probe.errors import InputError
from fattn_probe.program.unsupported import CALLS, HEADERS

HIP = "hip/hip_runtime.h"
C_HEADERS = (
    "assert complex ctype errno float inttypes limits locale math setjmp signal stdarg stddef stdint stdio stdlib"
)
STANDARD = re.compile(rf"[a-z_]+|(?:{'|'.join(C_HEADERS.split())}|string|time)\.h")
"""Headers of the C and C++ libraries."""


@dataclass(frozen=True)
class Program:
    """A program in one file, with `-I` folders and `-D` macros; `fast_math` is nvcc's -use_fast_math."""

    path: Path
    includes: tuple[Path, ...] = ()
    defines: tuple[str, ...] = ()
    fast_math: bool = False

    @cached_property
    def texts(self) -> dict[Path, str]:
        """The file and those that it includes from its own folders, by absolute path."""
        if not self.path.is_file():
            raise InputError(f"{self.path}: there is no such file")
        folders = tuple(folder.resolve() for folder in self.includes)
        return included([self.path.resolve()], folders, Path("/"))

    @property
    def hip(self) -> bool:
        """Whether it is a HIP program."""
        return self.path.suffix == ".hip" or any(HIP in INCLUDE.findall(text) for text in self.texts.values())

    @property
    def digest(self) -> str:
        """Of everything that the compiled program depends on."""
        parts = [*map(str, self.includes), *self.defines, str(self.fast_math)]
        parts += [f"{path}\0{text}" for path, text in sorted(self.texts.items())]
        return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:12]

    @property
    def standard_headers(self) -> list[str]:
        """The headers of the C and C++ libraries that the program includes, in order."""
        names = [name for text in self.texts.values() for name in INCLUDE.findall(text)]
        return list(dict.fromkeys(name for name in names if STANDARD.fullmatch(name)))


def check_supported(program: Program) -> None:
    """InputError that names each place where the program uses what the simulator does not have."""
    found = [f"{path}:{line}: {what}" for path, text in program.texts.items() for line, what in unsupported(text)]
    if found:
        raise InputError("\n".join(["this program needs what the simulator does not have:", *found]))


def unsupported(text: str) -> list[tuple[int, str]]:
    """(line, what is missing) for each use of what the simulator does not have."""
    draft = draft_of(tokenize(text))
    headers = [
        (1 + text.count("\n", 0, match.start(1)), f"<{match[1]}>: {what}")
        for match in INCLUDE.finditer(text)
        for name, what in HEADERS.items()
        if match[1] == name or (name.endswith("/") and match[1].startswith(name))
    ]
    names = [
        (draft.lines[index], f"{name}: {what}")
        for name, what in CALLS.items()
        for index in draft.where.get(name, ())
        if not is_own(draft, index)
    ]
    return sorted(headers + names)


def is_own(draft: Draft, index: int) -> bool:
    """Whether a name is a member of something: of the program's own, then."""
    return draft.word(index - 1) in (".", "->")
