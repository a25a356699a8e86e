"""The origin of a kernel's registers and static shared memory: measured, estimated or assumed."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from fattn_probe.base.errors import InputError


class Method(StrEnum):
    """The source of figures: ptxas for the architecture, or a GPU's driver; a different compiler; launch bounds; or
    unknown, because a launch record does not say."""

    MEASURED = "measured"
    ESTIMATED = "estimated"
    ASSUMED = "assumed"
    UNKNOWN = "unknown"


SPELLING = re.compile(rf"(?P<method>{'|'.join(Method)})(?: b(?P<build>\d+))?")
EXPLAINED = {
    Method.MEASURED: "",
    Method.ESTIMATED: "the figures are another compiler's (Debian's clang 19 for AMD GPUs, an older ptxas for sm_61 "
    "and sm_70)",
    Method.ASSUMED: "without the compiler's figures, the most registers that __launch_bounds__ allows stand in, and no "
    "static shared memory",
    Method.UNKNOWN: "the launch record does not say where its figures are from",
}


@dataclass(frozen=True)
class Origin:
    """The origin of a kernel's registers and static shared memory, which determine how many blocks fit on an SM.

    `build_number` is the llama.cpp build that the figures are from, if that is not the source that runs.
    """

    method: Method = Method.UNKNOWN
    build_number: int | None = None

    @property
    def known(self) -> bool:
        """Whether these are the figures of the kernel that runs."""
        return self == MEASURED

    @property
    def mark(self) -> str:
        """The short mark of uncertain figures: `assumed`, `b7551`, `estimated b7551`; empty for known ones."""
        return str(self).removeprefix(Method.MEASURED).strip()

    @property
    def explained(self) -> str:
        """The meaning of the mark; empty if the figures are known."""
        release = f"the figures are from llama.cpp b{self.build_number}, not from the source that runs here"
        return "; ".join(filter(None, (release if self.build_number else "", EXPLAINED[self.method])))

    def marked(self, value: object) -> str:
        """A value with its mark: `255 (assumed)`."""
        return f"{value} ({self.mark})" if self.mark else str(value)

    def __str__(self) -> str:
        return f"{self.method} b{self.build_number}" if self.build_number else self.method.value


MEASURED, UNKNOWN = Origin(Method.MEASURED), Origin()


def parse_origin(text: str) -> Origin:
    """The origin from the text that `str` gives; InputError for any other text."""
    match = SPELLING.fullmatch(text)
    if match is None:
        raise InputError(f"origin {text!r}: not one of {', '.join(Method)}, or one of these and a build, as in b7551")
    return Origin(Method(match["method"]), int(match["build"]) if match["build"] else None)


def legend(origins: Iterable[Origin]) -> list[str]:
    """A line for each mark that appears among some figures: `(assumed): without the compiler's figures, ...`."""
    return [f"({origin.mark}): {origin.explained}" for origin in dict.fromkeys(origins) if not origin.known]
