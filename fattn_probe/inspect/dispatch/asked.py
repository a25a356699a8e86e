"""The records of what a dispatch asks before it launches a kernel. Only the standard library is imported here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fattn_probe.cxx.logic import Logic

Lines = tuple[int, int]
Kind = Literal["if", "if constexpr", "while", "switch", "value", "macro", "outcome"]


@dataclass(frozen=True)
class Case:
    """The labels that share some lines of a switch, and what is done there."""

    labels: tuple[str, ...]
    lines: Lines
    leads_to: str


@dataclass(frozen=True)
class Condition:
    """Something that a function of the dispatch asks, in `lines`, which are inclusive as all lines here.

    `leads_to` is what follows if it holds, in the source's words. A `value` is a bool or a `?:` that is kept in
    `variable`; an `outcome` asks nothing: it is a statement that returns a choice or goes on to another function, as
    does a `macro`, which hides what it asks. `around` are the lines of the block that it stands in. `guarded`: between
    `#if` and `#endif`.
    """

    function: str
    file: str
    kind: Kind
    lines: Lines
    text: str
    logic: Logic
    leads_to: str
    body: Lines | None = None
    cases: tuple[Case, ...] = ()
    variable: str = ""
    around: Lines = (0, 0)
    in_loop: bool = False
    guarded: bool = False


@dataclass(frozen=True)
class DispatchFunction:
    """A function on the way to the kernel; `location` is its first statement, for a breakpoint.

    `calls` are the lines of the statements that go on to another function, which is where to step into it.
    """

    name: str
    file: str
    lines: Lines
    location: str
    calls: tuple[int, ...] = ()


@dataclass(frozen=True)
class Dispatch:
    """The functions that choose a kernel in one tree, the entry first, and what they ask.

    `parameters` are the template parameters of all functions in the files, by name.
    """

    functions: tuple[DispatchFunction, ...]
    conditions: tuple[Condition, ...]
    parameters: Mapping[str, tuple[str, ...]]
