"""Whether what is debugged has debug information at all: without it gdb finds neither lines nor variables."""

from fattn_probe.debug.protocol import Debugger, DebuggerError
from fattn_probe.errors import BuildError

WITHOUT = "Yes (*)"
"""How `info sharedlibrary` marks a library without debug information."""


def require_debug_info(debugger: Debugger, library: str = "") -> None:
    """BuildError if the program, or the loaded library of this name, was stripped or built without `-g`."""
    if library:
        missing = [line.split()[-1] for line in _libraries(debugger, library) if WITHOUT in line]
    else:
        missing = [] if _has_lines(debugger) else ["the program"]
    if missing:
        raise BuildError(
            f"{missing[0]} has no debug information, so no line or variable of it can be found: "
            "it was stripped, or built without -g (`fattn-probe build --debug` makes one that has it)"
        )


def _libraries(debugger: Debugger, name: str) -> list[str]:
    return [line for line in debugger.execute("info sharedlibrary").splitlines() if name in line]


def _has_lines(debugger: Debugger) -> bool:
    try:
        return debugger.execute("info line main").startswith("Line ")
    except DebuggerError:  # no symbol `main` either
        return False
