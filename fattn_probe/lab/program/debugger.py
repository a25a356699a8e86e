"""`fattn-probe program --gdb`: the program in gdb or cuda-gdb, at the first line of a kernel."""

from collections.abc import Sequence

from fattn_probe.cases.device import Target
from fattn_probe.daily.inspect.inspector import DEBUGGERS
from fattn_probe.daily.inspect.live import hand_over
from fattn_probe.lab.program.build import Executable
from fattn_probe.lab.program.execute import environment
from fattn_probe.machine.run.simulator import Simulation

SETTINGS = ("set breakpoint pending on", "set print frame-arguments presence", "set pagination off", "set width 0")
IN_A_BLOCK = "simt::self != 0"
"""A kernel's body is also entered on the host, when it describes itself (native/sim/launch.h)."""


def debug(executable: Executable, target: Target, arguments: Sequence[str], *, fast_math: bool) -> int:
    """Hand the terminal to the debugger until the user quits it; returns its exit code.

    It stops in the first thread of a launched kernel. On a simulated GPU one host thread runs all CUDA threads, block
    by block.
    """
    debugger = DEBUGGERS[target.engine]
    stops = [f"tbreak {kernel.file}:{kernel.line} if {IN_A_BLOCK}" for kernel in executable.kernels]
    if target.engine == "cuda":
        stops = ["set cuda break_on_launch application"]
    commands = [*SETTINGS, *stops, "run"]
    words = [word for command in commands for word in ("-ex", command)]
    env = environment(target, Simulation(threads=1), fast_math=fast_math)
    return hand_over([debugger, "-q", *words, "--args", str(executable.path), *arguments], env)
