"""The command line of `inspect` and `debug`."""

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe.base.activity import Activity
from fattn_probe.base.console import NOTES, show
from fattn_probe.base.errors import InputError, LostError
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.cases import cases_of, one_case
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.cases.scenario.schema import Inspect, TracePlace
from fattn_probe.cli import flags, setup
from fattn_probe.cli.commands import offered
from fattn_probe.cli.setup import BuildFlags, Simulate, Where
from fattn_probe.daily.inspect import command as inspecting
from fattn_probe.daily.inspect.examine import Examined, Examiner, Extras, inspect_upstream, watch_of
from fattn_probe.daily.inspect.facts import Facts
from fattn_probe.daily.inspect.inspector import InspectOptions, Inspector
from fattn_probe.daily.inspect.tensors import parse_slice
from fattn_probe.llama.build import RUNNER
from fattn_probe.machine.debug.session import require_debugger
from fattn_probe.machine.run.command import describe

At = Annotated[str, typer.Option("--at", help="Location in the kernel: block=5,warp=2,lane=0,kb0=3, or some of these.")]
COMPILED = ("source", "patch", "quants", "folder")
"""The build flags that these commands offer; the flavour is always debug."""


@dataclass(frozen=True)
class ShownFlags:
    """Output"""

    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show every block, tile and condition.")] = False
    html: Annotated[
        Path | None,
        typer.Option("--html", dir_okay=False, help="Write an HTML page with the map of the work to this file."),
    ] = None
    svg: Annotated[
        Path | None, typer.Option("--svg", dir_okay=False, help="Write the map of the work to this file, as SVG.")
    ] = None
    as_json: flags.Json = False


@dataclass(frozen=True)
class LookFlags:
    """Values to read from the kernel"""

    host: Annotated[bool, typer.Option("--host", help="Read only the host side, not the kernel's blocks.")] = False
    at: At = ""
    trace: Annotated[
        bool, typer.Option("--trace", help="Follow a warp and an output row to dst; name the first wrong value.")
    ] = False
    npz: Annotated[
        Path | None, typer.Option("--npz", help="Write the registers of all warps of the block at --at to this file.")
    ] = None
    find_nan: Annotated[bool, typer.Option("--find-nan", help="Find where the first NaN or infinity arises.")] = False
    values: Annotated[
        list[str] | None, typer.Option("--values", help="Print a tensor's values, such as K[:8,0,1]; repeatable.")
    ] = None
    captures: Annotated[
        Path | None,
        typer.Option("--captures", file_okay=False, help="Write the tensors from memory to this folder, as GGUF."),
    ] = None
    break_: Annotated[str, typer.Option("--break", help="Stop at lines that match: PATTERN@FILE.")] = ""
    print_: Annotated[
        list[str] | None, typer.Option("--print", help="An expression to print at --break; repeatable.")
    ] = None
    stops: Annotated[int, typer.Option(help="Number of stops at --break.", min=1)] = 1


@dataclass(frozen=True)
class DialogueFlags:
    """The debugger"""

    debugger: Annotated[str, typer.Option("--debugger", help="The gdb or cuda-gdb to use, with its flags.")] = ""
    mi: Annotated[bool, typer.Option("--mi", help="Use MI only, not the debugger's Python.")] = False
    transcript: Annotated[
        Path | None,
        typer.Option("--transcript", dir_okay=False, help="Write the whole dialogue with the debugger to this file."),
    ] = None

    @property
    def words(self) -> tuple[str, ...]:
        """The words of `--debugger`, split as by a shell."""
        try:
            return tuple(shlex.split(self.debugger))
        except ValueError as error:
            raise InputError(f"--debugger {self.debugger!r}: {error}") from error


def inspect(
    paths: flags.MaybeScenarios = None,
    *,
    where: Where,
    look: LookFlags,
    build: Annotated[BuildFlags, offered(*COMPILED)],
    dialogue: DialogueFlags,
    program: Annotated[str, typer.Option(help="Program to run: test-backend-ops for upstream's own cases.")] = RUNNER,
    only: Annotated[
        str, typer.Option("--filter", help="Upstream's case, or a regular expression that matches it.")
    ] = "",
    answer: ShownFlags,
) -> None:
    """Run an op under gdb or cuda-gdb, and show its tensors, the choice of kernel, the tiling and each block's work."""
    cases = cases_of(paths or ()) if program == RUNNER else []
    traced = {case.name for case in cases if look.trace or look.npz or case.inspect.trace}
    if look.at and not (traced or look.trace or look.npz or look.break_):
        raise InputError("--at sets the location for --trace, --npz and --break: give one of these too")
    work = setup.work_of([placed(case, look.at) for case in cases], where)
    if look.npz is not None and sum(len(targets) for _, targets in work) != 1:
        raise InputError("--npz writes one block: choose one case and one target")
    extras = Extras(
        values=tuple(parse_slice(text) for text in look.values or ()),
        captures=look.captures,
        watch=watch_of(look.break_, look.print_ or (), look.stops),
        traced=frozenset(traced),
        npz=look.npz,
        find_nan=look.find_nan,
    )
    options = InspectOptions(
        debugger=dialogue.words,
        python=False if dialogue.mi else None,
        blocks=not look.host,
        transcript=dialogue.transcript,
        deadline=where.timeout,
    )
    run_options = setup.run_options(replace(build, debug=True), simulate=Simulate(threads=1))
    targets = [] if program == RUNNER else setup.targets_of(where)
    for target in (*targets, *(target for _, each in work for target in each)):
        require_debugger(options.debugger_on(target))  # before anything is compiled
    with Activity(NOTES, len(targets) or setup.number_of(work)) as activity:
        inspector = Inspector(setup.prepared_session(run_options, work, activity), options)
        if program == RUNNER:
            examined = Examiner(inspector, extras, activity.step).examine_all(work)
        else:
            examined = inspect_upstream(inspector, program, only, targets, activity.step)
        done = list(activity.each(examined, lambda item: "inspected" if item.facts else "without a kernel"))
    if look.npz is not None and look.npz.is_file():
        NOTES.print(f"wrote {look.npz}")
    if answer.html is not None or answer.svg is not None:
        from fattn_probe.daily.inspect import pages  # imports jinja2 and the drawings, for files only

        for path, write in ((answer.html, pages.write_page), (answer.svg, pages.write_map)):
            if path is not None:
                write(done, path)
                NOTES.print(f"wrote {path}")
    show(inspecting.examined_json(done), lambda: inspecting.render_examined(done, answer.verbose), answer.as_json)
    inspecting.raise_if_wrong(done)


def debug(
    path: flags.OneScenario,
    *,
    where: Annotated[Where, offered("on", "devices")],
    build: Annotated[BuildFlags, offered(*COMPILED)],
    dialogue: Annotated[DialogueFlags, offered("debugger")],
    case_name: flags.CaseName = "",
    at: At = "",
) -> None:
    """Open gdb or cuda-gdb at a kernel's first line, with extra commands: `fattn tensors|launch|blocks|tile`."""
    case = placed(one_case(path, case_name), at)
    (_, (target, *more)) = setup.work_of([case], where)[0]
    if more:
        raise InputError("debug opens one debugger: give one target")
    options = InspectOptions(debugger=dialogue.words)
    require_debugger(options.debugger_on(target))
    run_options = setup.run_options(replace(build, debug=True), simulate=Simulate(threads=1))
    with Activity(NOTES) as activity:
        inspector = Inspector(setup.session_of(run_options, activity), options)
        activity.step(f"{case.name} on {target}: reading the dispatch, the launch and the blocks")
        inputs = make_inputs(case)
        found = inspector.inspect(case, inputs, target)
    if not isinstance(found.result, Facts):
        inspecting.raise_if_wrong([Examined(found)])
        raise LostError(f"{case.name} on {target}: {describe(found.result)}")
    from fattn_probe.daily.inspect import live  # makes tables for the debugger's commands

    sys.exit(live.debug(inspector, case, inputs, target, found.result))


def placed(case: Case, at: str) -> Case:
    """The case with `--at` as the place to inspect; without `--at`, the scenario sets the place."""
    if not at:
        return case
    pairs = [pair.partition("=") for pair in at.split(",")]
    allowed = ", ".join(TracePlace.model_fields)
    try:
        place = {name.strip(): int(value) for name, _, value in pairs}
        return replace(case, inspect=Inspect(trace=TracePlace(**place)))
    except (ValueError, TypeError) as error:  # pydantic's ValidationError is a ValueError
        raise InputError(f"--at {at!r} is not a place such as block=5,warp=2; allowed: {allowed}") from error
