"""The command line of `program`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe import flags, setup
from fattn_probe.activity import Activity
from fattn_probe.build.key import Flavour
from fattn_probe.build.stamp import PACKAGE
from fattn_probe.console import NOTES, OUT, STDOUT, show
from fattn_probe.device import Target, every_device, parse_targets
from fattn_probe.errors import ComparisonError, InputError
from fattn_probe.files import writing
from fattn_probe.program.build import Executable, maker
from fattn_probe.program.debugger import debug
from fattn_probe.program.execute import ProgramRun, Settings, document, execute
from fattn_probe.program.show import render
from fattn_probe.program.source import Program
from fattn_probe.run.simulator import Simulation

ATTENTION_H = PACKAGE / "kernels/cuda"
"""The folder of attention.h: a kernel for `compare --kernel` may be a program too."""
ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}


def program(
    file: Annotated[Path, typer.Argument(help="A CUDA or HIP program in one file, with its main().", metavar="FILE")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="The program's own arguments, after `--`.", metavar="-- ARGS")
    ] = None,
    on: flags.On = "",
    check: flags.Check = False,
    schedule: flags.Schedule = 0,
    define: Annotated[list[str], typer.Option("-D", help="A macro, NAME or NAME=VALUE; may be repeated.")] = [],  # noqa: B006
    include: Annotated[
        list[Path],
        typer.Option("-I", exists=True, file_okay=False, help="A folder with headers; may be repeated."),
    ] = [],  # noqa: B006
    fast_math: Annotated[
        bool, typer.Option("--use_fast_math", help="Compile as nvcc -use_fast_math does: fast division, expf, ...")
    ] = False,
    gdb: Annotated[bool, typer.Option("--gdb", help="Open gdb or cuda-gdb at the first line of a kernel.")] = False,
    threads: flags.Threads = None,
    timeout: flags.Timeout = 600.0,
    devices: flags.Devices = None,
    as_json: flags.Json = False,
) -> None:
    """Compile and run a CUDA or HIP program of your own, on a simulated GPU or a real one."""
    chosen = Program(file, (*include, ATTENTION_H), tuple(define), fast_math)
    targets = list(parse_targets(on or setup.chooser(NOTES)(), every_device(devices)))
    flavour = flavour_for(targets, check=check, gdb=gdb)
    settings = Settings(tuple(arguments or ()), timeout, as_json)
    runs = []
    for target in targets:
        with Activity(NOTES) as activity:
            made = compiled(chosen, target, flavour, activity)
        if gdb:
            sys.exit(debug(made, target, settings.arguments, fast_math=fast_math))
        runs.append(execute(made, target, settings, Simulation(schedule, threads), fast_math=fast_math))
        if not as_json:
            with writing(STDOUT):
                OUT.print(render(runs[-1], target, checked=check))
    if as_json:
        show({"program": str(file), "runs": [document(run) for run in runs]}, str, as_json)
    end(runs)


def flavour_for(targets: list[Target], *, check: bool, gdb: bool) -> Flavour:
    """The flavour to compile; InputError for flags that the targets cannot have."""
    for target in targets:
        if target.engine == "cpu":
            raise InputError("program --on cpu: a CUDA program needs a GPU, simulated (sim:ID) or real (gpu)")
        if check and target.engine == "cuda":
            raise InputError("--check is for simulated GPUs; on a GPU, run the program under compute-sanitizer")
    if gdb and check:
        raise InputError("--gdb and --check need different builds: choose one")
    if gdb and len(targets) > 1:
        raise InputError("--gdb runs on one GPU: choose it with --on")
    return "debug" if gdb else "check" if check else "release"


def compiled(chosen: Program, target: Target, flavour: Flavour, activity: Activity) -> Executable:
    """The program for a target, compiled with progress; its warnings are noted."""
    building = activity.beside(
        setup.build_progress(NOTES, "compiling"), lambda progress: progress.done < progress.total
    )
    made = maker(target, flavour).make(chosen, building)
    for warning in made.warnings:
        NOTES.print(warning, style="yellow", markup=False, soft_wrap=True)
    return made


def end(runs: list[ProgramRun]) -> None:
    """Exit as the first program did that failed: with 5 for a finding, else with its own code, 128 + n for a signal."""
    for run in runs:
        if run.fault is not None:
            raise ComparisonError(f"the simulator stopped the program: {run.fault.kind}")
        if run.code:
            sys.exit(run.code if run.code > 0 else 128 - run.code)
