"""The flags that commands share, as objects: a parameter of one of these types stands for all of its flags.

The docstring of a class heads its flags in `--help`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe.cli import flags
from fattn_probe.llama.source import DEFAULT_SOURCE

SIMULATED = "sim:h200"


@dataclass(frozen=True)
class Where:
    """Where to run, and for how long"""

    on: flags.On = ""
    devices: flags.Devices = None
    timeout: Annotated[
        float, typer.Option("--timeout", callback=flags.seconds, help="Time limit of a run, in seconds.")
    ] = 600.0


@dataclass(frozen=True)
class BuildFlags:
    """The llama.cpp to run, and how to compile it"""

    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            help="llama.cpp tree: pypi:NAME==VERSION, git:REF, or a folder; "
            f"default: the checkout that contains the current folder, or {DEFAULT_SOURCE}.",
            metavar="SOURCE",
            show_default=False,
        ),
    ] = None
    patch: Annotated[
        list[str],
        typer.Option("--patch", help="A patch by name or file; may be repeated.", autocompletion=flags.complete_patch),
    ] = field(default_factory=list)
    debug: Annotated[bool, typer.Option("--debug", help="Debug build: -G -g for a GPU, -O0 -g for the simulator.")] = (
        False
    )
    check: Annotated[bool, typer.Option("--check", help="Simulator: check every memory access of the kernels.")] = False
    sanitize: Annotated[
        str, typer.Option("--sanitize", help="Simulator: sanitizers, address,undefined or one of them.")
    ] = ""
    quants: Annotated[
        str, typer.Option("--quants", help="Additional K-V type pairs with vec kernels, such as q8_0-f16, or all.")
    ] = ""
    folder: Annotated[Path | None, typer.Option("--build", help="Use the build in this folder, unchanged.")] = None


@dataclass(frozen=True)
class Simulate:
    """The simulator"""

    schedule: Annotated[
        int,
        typer.Option(
            "--schedule",
            min=0,
            max=2**31 - 1,
            help="Simulator: the seed of an adversarial order of threads; 0: the normal order.",
        ),
    ] = 0
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, max=flags.MOST_THREADS, help="Simulator: host threads; default: all cores."),
    ] = None
