"""The command line of `program`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe.base.activity import Activity
from fattn_probe.base.console import NOTES, OUT, show
from fattn_probe.base.errors import ComparisonError, InputError, LostError
from fattn_probe.cases.device import Target
from fattn_probe.cli import flags, setup
from fattn_probe.cli.setup import Simulate, Where
from fattn_probe.lab.kernels.compiled import CUDA
from fattn_probe.lab.program.build import Executable, Program, check_vendor, maker
from fattn_probe.lab.program.execute import ProgramSettings, document, environment, execute, render
from fattn_probe.llama.build.key import Flavour
from fattn_probe.machine.run.simulator import Simulation

SETTINGS = ("set breakpoint pending on", "set print frame-arguments presence", "set pagination off", "set width 0")
IN_A_BLOCK = "simt::self != 0"
"""True in a running block; a kernel is also entered on the host, where it describes itself (native/sim/launch.h)."""


@dataclass(frozen=True)
class Compiling:
    """Compilation"""

    define: Annotated[list[str], typer.Option("-D", help="A macro, NAME or NAME=VALUE; may be repeated.")] = field(
        default_factory=list
    )
    include: Annotated[
        list[Path],
        typer.Option("-I", exists=True, file_okay=False, help="A folder with headers; may be repeated."),
    ] = field(default_factory=list)
    fast_math: Annotated[
        bool, typer.Option("--use_fast_math", help="Compile as nvcc -use_fast_math does: fast division, expf, ...")
    ] = False
    check: flags.Check = False


def program(
    file: Annotated[Path, typer.Argument(help="A CUDA or HIP program in one file, including main().", metavar="FILE")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="The program's own arguments, after `--`.", metavar="-- ARGS")
    ] = None,
    *,
    where: Where,
    compiling: Compiling,
    simulate: Simulate,
    gdb: Annotated[bool, typer.Option("--gdb", help="Open gdb or cuda-gdb at the first line of a kernel.")] = False,
    as_json: flags.Json = False,
) -> None:
    """Compile and run your own CUDA or HIP program on a simulated or a real GPU."""
    chosen = Program(file, (*compiling.include, CUDA), tuple(compiling.define), compiling.fast_math)
    targets = setup.targets_of(where)
    for target in targets:
        if target.engine == "cpu":
            raise InputError("program --on cpu: a CUDA program needs a GPU, simulated (sim:ID) or real (gpu)")
        if compiling.check and target.engine == "cuda":
            raise InputError("--check is for simulated GPUs; on a GPU, run the program under compute-sanitizer")
        check_vendor(chosen, target.device.arch if target.device else "")
    if gdb and compiling.check:
        raise InputError("--gdb and --check need different builds: choose one")
    if gdb and len(targets) > 1:
        raise InputError("--gdb runs on one GPU: choose it with --on")
    flavour: Flavour = "debug" if gdb else "check" if compiling.check else "release"
    settings = ProgramSettings(tuple(arguments or ()), where.timeout, as_json)
    runs = []
    for target in targets:
        with Activity(NOTES) as activity:
            made = compiled(chosen, target, flavour, activity)
        if gdb:
            sys.exit(debug(made, target, settings.arguments))
        runs.append(execute(made, target, settings, setup.simulation_of(simulate)))
        if not as_json:
            OUT.print(render(runs[-1], target, checked=compiling.check))
    if as_json:
        show({"program": str(file), "runs": [document(run) for run in runs]}, str, as_json)
    for run in runs:  # the first failure: 5 for a finding, otherwise the program's code, 128 + n for a signal
        if run.finding is not None:
            error = LostError if run.finding.is_lost else ComparisonError
            raise error(f"the simulator stopped the program: {run.finding.kind}")
        if run.code:
            sys.exit(run.code if run.code > 0 else 128 - run.code)


def compiled(chosen: Program, target: Target, flavour: Flavour, activity: Activity) -> Executable:
    """Compile a program for a target, showing progress and warnings."""
    building = activity.beside(setup.build_progress(NOTES, "compiling"), lambda one: one.done < one.total)
    made = maker(target, flavour).make(chosen, building)
    for warning in made.warnings:
        NOTES.print(warning, style="yellow", soft_wrap=True)
    return made


def debug(executable: Executable, target: Target, arguments: Sequence[str]) -> int:
    """Hand the terminal to the debugger until the user quits it; returns the debugger's exit code.

    The debugger stops in the first thread of a kernel. On a simulated GPU, one host thread runs all blocks in turn.
    """
    from fattn_probe.daily.inspect.inspector import DEBUGGERS  # imports the debuggers, for --gdb only
    from fattn_probe.daily.inspect.live import hand_over

    debugger = DEBUGGERS[target.engine]
    stops = [f"tbreak {place} if {IN_A_BLOCK}" for place in executable.kernels]
    if target.engine == "cuda":
        stops = ["set cuda break_on_launch application"]
    commands = [*SETTINGS, *stops, "run"]
    words = [word for command in commands for word in ("-ex", command)]
    env = environment(executable, target, Simulation(threads=1))
    return hand_over([debugger, "-q", *words, "--args", str(executable.path), *arguments], env)
