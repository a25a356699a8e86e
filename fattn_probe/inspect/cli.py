"""The command line of `inspect` and `debug`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe import flags
from fattn_probe.console import NOTES, show
from fattn_probe.inspect import command as inspecting
from fattn_probe.inspect.inspector import InspectOptions, Inspector
from fattn_probe.run.session import Session
from fattn_probe.run.simulator import Simulation
from fattn_probe.source import DEFAULT_SOURCE

DebuggerFlag = Annotated[str, typer.Option("--debugger", help="Another gdb or cuda-gdb, with its own flags.")]
Transcript = Annotated[Path | None, typer.Option("--transcript", help="Keep the whole dialogue with the debugger.")]


def inspect(
    paths: flags.Scenarios,
    on: flags.On = "",
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Every block, tile and condition.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with the map as a picture.")] = None,
    host: Annotated[bool, typer.Option("--host", help="Host facts alone; leave the kernel's blocks out.")] = False,
    source: flags.Source = DEFAULT_SOURCE,
    patch: flags.Patches = [],  # noqa: B006
    quants: flags.Quants = "",
    folder: flags.BuildFolder = None,
    debugger: DebuggerFlag = "",
    mi: Annotated[bool, typer.Option("--mi", help="Leave the debugger's Python alone: everything over MI.")] = False,
    transcript: Transcript = None,
    timeout: flags.Timeout = 600.0,
    devices: flags.Devices = None,
    as_json: flags.Json = False,
) -> None:
    """Look at an op under gdb or cuda-gdb: tensors, kernel choice and why, tiling, and what each block does."""
    work = flags.work_of(flags.cases_of(paths), on, devices, NOTES)
    build = flags.BuildFlags(source, patch, debug=True, quants=quants, folder=folder)
    options = InspectOptions(
        debugger=tuple(shlex.split(debugger)),
        python=False if mi else None,
        blocks=not host,
        transcript=transcript,
        deadline=timeout,
    )
    session = Session(build.run_options(NOTES, Simulation(threads=1)), flags.build_progress(NOTES))
    done = list(inspecting.inspect_work(Inspector(session, options), work))
    if html is not None:
        inspecting.write_page(done, html)
        NOTES.print(f"wrote {html}")
    show(inspecting.inspections_json(done), lambda: inspecting.render_inspections(done, verbose), as_json)
    inspecting.raise_if_wrong(done)
