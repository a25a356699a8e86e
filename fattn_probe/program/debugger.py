"""`fattn-probe program --gdb`: the program in gdb or cuda-gdb, at the first line of a kernel."""

import subprocess
from collections.abc import Sequence

from fattn_probe.debug.session import INSTALL
from fattn_probe.device import Target
from fattn_probe.errors import BuildError
from fattn_probe.inspect.inspector import DEBUGGERS
from fattn_probe.inspect.live import interrupts_are_the_debuggers
from fattn_probe.program.build import Executable
from fattn_probe.program.execute import environment
from fattn_probe.run.simulator import Simulation

SETTINGS = ("set breakpoint pending on", "set print frame-arguments presence", "set pagination off", "set width 0")
IN_A_BLOCK = "simt::self != 0"
"""On the host a kernel's body begins too, when it describes itself (native/sim/launch.h)."""


def debug(executable: Executable, target: Target, arguments: Sequence[str], *, fast_math: bool) -> int:
    """Hand the terminal to the debugger until the user quits it; returns its exit code.

    On a simulated GPU one host thread runs all CUDA threads, block by block.
    """
    debugger = DEBUGGERS[target.engine]
    commands = [*SETTINGS, *breakpoints(executable, target), "run"]
    words = [word for command in commands for word in ("-ex", command)]
    env = environment(target, Simulation(threads=1), fast_math=fast_math)
    with interrupts_are_the_debuggers():
        try:
            return subprocess.call([debugger, "-q", *words, "--args", str(executable.path), *arguments], env=env)
        except FileNotFoundError as error:
            raise BuildError(f"{debugger} is not on this machine. To install it: {INSTALL}") from error


def breakpoints(executable: Executable, target: Target) -> list[str]:
    """The debugger's commands that stop in the first thread of a launched kernel."""
    if target.engine == "cuda":
        return ["set cuda break_on_launch application"]
    return [f"tbreak {kernel.file}:{kernel.line} if {IN_A_BLOCK}" for kernel in executable.kernels]
