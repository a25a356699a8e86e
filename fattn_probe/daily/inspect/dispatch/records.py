"""Records of the conditions on the way to a kernel."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fattn_probe.llama.cxx.logic import Logic
from fattn_probe.llama.source.features import CUDA

FILES = "fattn*.cu*"  # in ggml-cuda/: those with the dispatch
DEFINES = (CUDA / "common.cuh", CUDA / "fattn-common.cuh", Path("ggml/include/ggml.h"))  # those with its macros
Lines = tuple[int, int]
Kind = Literal["if", "if constexpr", "while", "switch", "value", "macro", "outcome"]


@dataclass(frozen=True)
class SwitchCase:
    """One branch of a switch: its labels, its lines, and what it leads to."""

    labels: tuple[str, ...]
    lines: Lines
    leads_to: str


@dataclass(frozen=True)
class Condition:
    """A condition in a function of the dispatch, on `lines` (first and last, inclusive, like all lines here).

    `leads_to` is the source text of what follows if the condition holds. A `value` is a bool or a `?:` assigned to
    `variable`. An `outcome` has no condition: it returns a choice or calls another function; so does a `macro`, whose
    conditions are hidden. `around` are the lines of the enclosing block. `guarded`: between `#if` and `#endif`.
    """

    function: str
    file: str
    kind: Kind
    lines: Lines
    text: str
    logic: Logic
    leads_to: str
    body: Lines | None = None
    cases: tuple[SwitchCase, ...] = ()
    variable: str = ""
    around: Lines = (0, 0)
    in_loop: bool = False
    guarded: bool = False


@dataclass(frozen=True)
class DispatchFunction:
    """A function on the way to the kernel; `location` is its first statement, where a breakpoint goes.

    `calls` are the lines that call another function of the dispatch; the debugger steps into them.
    """

    name: str
    file: str
    lines: Lines
    location: str
    calls: tuple[int, ...] = ()


@dataclass(frozen=True)
class Dispatch:
    """The functions that choose a kernel in one tree, the entry first, and their conditions.

    `parameters` are the template parameters of all functions in the files, by name.
    """

    functions: tuple[DispatchFunction, ...]
    conditions: tuple[Condition, ...]
    parameters: Mapping[str, tuple[str, ...]]
