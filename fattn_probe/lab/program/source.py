"""A CUDA program: its file, its own headers, and compile options."""

import os
import re
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

import yaml

from fattn_probe.base.digest import short
from fattn_probe.base.errors import InputError
from fattn_probe.llama.build.simulator_flags import HIP_HEADERS
from fattn_probe.llama.build.stamp import NATIVE
from fattn_probe.llama.cxx.includes import INCLUDE, included
from fattn_probe.llama.cxx.tokens import draft_of, tokenize

HIP = "hip/hip_runtime.h"
SIMULATED = (NATIVE / "sim/program/include", NATIVE / HIP_HEADERS)
C_HEADERS = (
    "assert complex ctype errno float inttypes limits locale math setjmp signal stdarg stddef stdint stdio stdlib"
)
STANDARD = re.compile(rf"[a-z_]+|(?:{'|'.join(C_HEADERS.split())}|string|time)\.h")
"""Headers of the C and C++ libraries."""
UNWRITABLE = re.compile("[\n\udc80-\udcff]")
"""Characters that a build file cannot contain."""


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
        if self.path.is_dir():
            raise InputError(f"{self.path} is a folder: name the program's file")
        if not self.path.is_file():
            raise InputError(f"{self.path}: there is no such file")
        found = included([self.path.resolve()], self.folders, Path("/"))
        for word in (*map(str, (*found, *self.folders)), *self.defines):
            if UNWRITABLE.search(word):
                raise InputError(f"{word!r} has a line break, or bytes that are not UTF-8: rename it")
        return found

    @property
    def folders(self) -> tuple[Path, ...]:
        """The `-I` folders, absolute."""
        return tuple(folder.resolve() for folder in self.includes)

    def has(self, name: str, includer: Path) -> bool:
        """Whether an include of this name refers to one of the program's own files."""
        return any(Path(os.path.normpath(place / name)) in self.texts for place in (includer.parent, *self.folders))

    def folder_of(self, path: Path) -> Path | None:
        """The `-I` folder that a file comes from; None for the program's file and those beside it."""
        beside = path.is_relative_to(self.path.resolve().parent)
        return None if beside else next((folder for folder in self.folders if path.is_relative_to(folder)), None)

    @property
    def hip(self) -> bool:
        """Whether it is a HIP program."""
        return self.path.suffix == ".hip" or any(HIP in INCLUDE.findall(text) for text in self.texts.values())

    @property
    def digest(self) -> str:
        """The digest of everything that the compiled program depends on."""
        parts = [*map(str, self.includes), *self.defines, str(self.fast_math)]
        parts += [f"{path}\0{text}" for path, text in sorted(self.texts.items())]
        return short("\0".join(parts), 12)

    @property
    def standard_headers(self) -> list[str]:
        """The headers of the C and C++ libraries that the program includes, in order."""
        names = [name for text in self.texts.values() for name in INCLUDE.findall(text)]
        return list(dict.fromkeys(name for name in names if STANDARD.fullmatch(name)))

    @property
    def simulator_headers(self) -> list[str]:
        """The included CUDA headers for which the simulator has its own versions, in order."""
        names = [
            name for path, text in self.texts.items() for name in INCLUDE.findall(text) if not self.has(name, path)
        ]
        return [name for name in dict.fromkeys(names) if any((folder / name).is_file() for folder in SIMULATED)]


def check_supported(program: Program) -> None:
    """InputError that names each place where the program uses an unsupported feature."""
    found = [
        f"{path}:{line}: {what}"
        for path, text in program.texts.items()
        for line, what in sorted(missing_headers(program, path) + missing_names(text))
    ]
    if found:
        raise InputError("\n".join(["this program needs what the simulator does not have:", *found]))


@cache
def unsupported(kind: str) -> MappingProxyType[str, str]:
    """The headers or calls that the simulator does not support, each with a message."""
    found = yaml.safe_load((files("fattn_probe.lab.program") / "unsupported.yaml").read_text())[kind]
    return MappingProxyType({name: message for message, names in found.items() for name in names})


def missing_headers(program: Program, path: Path) -> list[tuple[int, str]]:
    """(line, what is missing) for each header that a file includes and neither the program nor the simulator has."""
    text = program.texts[path]
    return [
        (1 + text.count("\n", 0, match.start(1)), f"<{match[1]}>: {what}")
        for match in INCLUDE.finditer(text)
        for name, what in unsupported("headers").items()
        if (match[1] == name or (name.endswith("/") and match[1].startswith(name))) and not program.has(match[1], path)
    ]


def missing_names(text: str) -> list[tuple[int, str]]:
    """(line, what is missing) for each name that the simulator does not have."""
    draft = draft_of(tokenize(text))
    return [
        (draft.lines[index], f"{name}: {what}")
        for name, what in unsupported("calls").items()
        for index in draft.where.get(name, ())
        if draft.word(index - 1) not in (".", "->")  # a member belongs to the program
    ]
