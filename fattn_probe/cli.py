"""The command line: flags become one options object, and one function is called."""

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.logging import RichHandler

from fattn_probe import flags
from fattn_probe.activity import Activity
from fattn_probe.build import RUNNER, TEST_BACKEND_OPS, BuildRequest
from fattn_probe.build import command as building
from fattn_probe.build.cache_cli import cache_app
from fattn_probe.build.key import Engine
from fattn_probe.compare.cli import compare
from fattn_probe.console import NOTES, OUT, STDOUT, show, show_error
from fattn_probe.device import find_device, load_devices
from fattn_probe.device import show as devices_show
from fattn_probe.doctor import diagnose, probe
from fattn_probe.doctor import render as render_doctor
from fattn_probe.errors import BuildError, FattnProbeError, InputError, MachineError, machine_error
from fattn_probe.files import writing
from fattn_probe.inspect.cli import debug, inspect
from fattn_probe.ops import Timeouts, live
from fattn_probe.ops import render as render_ops
from fattn_probe.ops.options import Mode
from fattn_probe.ops.session import run_ops_on
from fattn_probe.regress.cli import bisect, diff, history_app, regress
from fattn_probe.run import command as running
from fattn_probe.run.gpu import gpu_arch, has_gpu
from fattn_probe.run.prepare import kernels_of_build
from fattn_probe.run.provenance import version
from fattn_probe.run.session import Session
from fattn_probe.run.simulator import Simulation
from fattn_probe.scenario import command as scenarios
from fattn_probe.shipped.cli import patch_app, suite_app
from fattn_probe.source import DEFAULT_SOURCE
from fattn_probe.source import command as sources
from fattn_probe.study.cli import study

HELP = "Build, run, inspect and check llama.cpp's CUDA flash-attention kernels, on a GPU or on a simulated one."
DEMO = ("run gqa --on sim:h200", "compare gqa --on sim:h200", "inspect gqa --on sim:h200")
app = typer.Typer(help=HELP, no_args_is_help=True, pretty_exceptions_enable=False)
scenario_app = typer.Typer(help="List, show, check and create scenario files.", no_args_is_help=True)
source_app = typer.Typer(help="Fetch and describe llama.cpp trees.", no_args_is_help=True)
device_app = typer.Typer(help="The catalogue of simulated GPUs.", no_args_is_help=True)
app.add_typer(scenario_app, name="scenario")
app.add_typer(suite_app, name="suite")
app.add_typer(source_app, name="source")
app.add_typer(patch_app, name="patch")
app.add_typer(device_app, name="device")
app.add_typer(history_app, name="history")
app.add_typer(cache_app, name="cache")
app.command()(compare)
app.command()(inspect)
app.command()(debug)
app.command()(study)
app.command()(regress)
app.command()(diff)
app.command()(bisect)


def show_version(wanted: bool) -> None:
    """Print the version, and end."""
    if wanted:
        print(f"fattn-probe {version('fattn-probe')}")
        raise typer.Exit


@app.callback()
def everything(
    _version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print each program that is run.")] = False,
) -> None:
    """Configure logging, for every command."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=NOTES, show_time=False, show_path=False, show_level=False)],
    )


@app.command()
def doctor(as_json: flags.Json = False) -> None:
    """Check what works on this machine, and say how to install what is missing."""
    report = diagnose(probe())
    show(report.as_dict(), lambda: render_doctor(report), as_json)
    if not report.sim_usable:
        raise BuildError(report.problem)


@app.command()
def demo() -> None:
    """Run a scenario on a simulated H200, judge its output, and inspect the kernel with gdb."""
    report = diagnose(probe())
    if not report.sim_usable:
        raise BuildError(report.problem)
    for command in DEMO:
        OUT.print(f"\n$ fattn-probe {command}", style="bold")
        app(command.split(), standalone_mode=False)


@app.command()
def build(
    paths: flags.Scenarios = [],  # noqa: B006
    engine: Annotated[
        Engine | None, typer.Option(help="sim or cuda; default: cuda if there is a GPU or --arch, else sim.")
    ] = None,
    arch: Annotated[str, typer.Option(help="GPU architecture, such as 90 or 120a; default: this machine's GPU.")] = "",
    kernel: Annotated[list[str] | None, typer.Option(help='A kernel such as "mma 64,64,8,8"; repeatable.')] = None,
    full: Annotated[bool, typer.Option("--full", help="Compile every kernel that upstream compiles.")] = False,
    export: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Copy the finished build to a new folder, to run it on another machine."),
    ] = None,
    ops: Annotated[bool, typer.Option("--ops", help="Build test-backend-ops too.")] = False,
    again: Annotated[
        bool, typer.Option("--no-ccache", help="Compile everything again, and replace the objects that builds share.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands without running them.")] = False,
    source: flags.Source = DEFAULT_SOURCE,
    patch: flags.Patches = [],  # noqa: B006
    debug: flags.Debug = False,
    check: flags.Check = False,
    sanitize: flags.Sanitize = "",
    quants: flags.Quants = "",
    as_json: flags.Json = False,
) -> None:
    """Build llama.cpp's CUDA backend, with the kernels that scenarios need; without scenarios, runs add theirs."""
    chosen = flags.BuildFlags(source, patch, debug, check, sanitize, quants)
    tree = chosen.tree(NOTES)
    engine = engine or ("cuda" if arch or has_gpu() else "sim")
    request = BuildRequest(
        tree,
        engine,
        chosen.flavour,
        arch=arch or (gpu_arch(0) if has_gpu() else "90"),
        sanitize=flags.words(sanitize),
        patches=chosen.found_patches(tree),
        quants=flags.words(quants),
    )
    kernels = [building.find_kernel(tree, text) for text in kernel or []]
    kernels += kernels_of_build(request, flags.cases_of(paths), flags.build_progress(NOTES)) if paths else []
    programs = (RUNNER, TEST_BACKEND_OPS) if ops or engine == "cuda" else (RUNNER,)
    options = building.BuildOptions(request, tuple(kernels), programs, full, export, again=again)
    if dry_run:
        plan = building.dry_run(options)
        show(plan, lambda: "\n".join([f"in {plan['folder']}:", *plan["commands"]]), as_json)
        return
    made = building.build(options, flags.build_progress(NOTES, building.title_of(request)))
    show(building.build_data(made), lambda: building.build_table(made), as_json)


@app.command()
def run(
    paths: flags.Scenarios,
    on: flags.On = "",
    captures: Annotated[
        Path | None,
        typer.Option("--captures", file_okay=False, help="Write a GGUF capture of each run to this folder."),
    ] = None,
    repeat: flags.Repeat = 1,
    source: flags.Source = DEFAULT_SOURCE,
    patch: flags.Patches = [],  # noqa: B006
    debug: flags.Debug = False,
    check: flags.Check = False,
    sanitize: flags.Sanitize = "",
    quants: flags.Quants = "",
    folder: flags.BuildFolder = None,
    schedule: flags.Schedule = 0,
    threads: flags.Threads = None,
    timeout: flags.Timeout = 600.0,
    devices: flags.Devices = None,
    as_json: flags.Json = False,
) -> None:
    """Run scenarios, and list the kernels that ran."""
    chosen = flags.BuildFlags(source, patch, debug, check, sanitize, quants, folder)
    work = flags.work_of(flags.cases_of(paths), on, devices, NOTES)
    options = chosen.run_options(
        NOTES, Simulation(schedule, threads), repeat=repeat, warmup=int(repeat > 1), timeout=timeout
    )
    with Activity(NOTES, flags.number_of(work)) as activity:
        session = flags.prepared_session(options, work, activity)
        activity.step("running")
        done = list(activity.each(running.run_cases(session, work, captures), attrgetter("status")))
    show(running.run_json(done), lambda: running.render_run(done), as_json)
    running.raise_if_failed(done)


@app.command()
def plan(
    paths: flags.Scenarios,
    on: flags.On = "",
    source: flags.Source = DEFAULT_SOURCE,
    patch: flags.Patches = [],  # noqa: B006
    quants: flags.Quants = "",
    devices: flags.Devices = None,
    as_json: flags.Json = False,
) -> None:
    """Show the kernels that GPUs of the catalogue would launch, without running them."""
    work = flags.work_of(flags.cases_of(paths), on, devices, NOTES, simulated=True)
    running.check_simulated(work)
    options = flags.BuildFlags(source, patch, quants=quants).run_options(NOTES, Simulation(dry=True))
    with Activity(NOTES, flags.number_of(work)) as activity:
        session = flags.prepared_session(options, work, activity)
        activity.step("reading the launches")
        done = list(activity.each(running.plan_cases(session, work), attrgetter("status")))
    show(running.run_json(done), lambda: running.render_plan(done), as_json)
    running.raise_if_failed(done)


@app.command()
def ops(
    mode: Annotated[Mode, typer.Argument(help="Upstream's mode: test, perf or support.")] = "test",
    only: Annotated[
        str, typer.Option("--filter", help="Only cases whose parameters match this regular expression.")
    ] = "",
    on: flags.On = "",
    silence: Annotated[
        float, typer.Option(callback=flags.seconds, help="Seconds of silence before a case is lost.")
    ] = 300.0,
    workers: Annotated[
        int, typer.Option(min=1, max=flags.MOST_THREADS, help="Parallel workers: upstream's -j, if the source has it.")
    ] = 1,
    source: flags.Source = DEFAULT_SOURCE,
    patch: flags.Patches = [],  # noqa: B006
    check: flags.Check = False,
    folder: flags.BuildFolder = None,
    timeout: flags.Timeout = 3600.0,
    devices: flags.Devices = None,
    as_json: flags.Json = False,
) -> None:
    """Run the FLASH_ATTN_EXT cases of upstream's test-backend-ops."""
    target, *more = flags.targets_of(on, devices, NOTES)
    if more:
        raise InputError("ops runs on one target at a time")
    options = flags.BuildFlags(source, patch, check=check, folder=folder).run_options(NOTES, Simulation())
    session = Session(options, flags.build_progress(NOTES))
    with live(NOTES) as on_result:
        report = run_ops_on(
            session,
            target,
            mode,
            only=only or None,
            timeouts=Timeouts(silence, timeout),
            on_result=on_result,
            workers=workers,
        )
    show(report.as_dict(), lambda: render_ops(report), as_json)
    if problem := report.problem():
        raise problem


@scenario_app.command("list")
def scenario_list(
    folder: Annotated[
        Path | None, flags.scenario_argument("A folder; default: the shipped scenarios.", "FOLDER")
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """List the shipped scenarios, or those of a folder."""
    found = scenarios.list_scenarios(folder)
    show([asdict(item) for item in found], lambda: scenarios.render_list(found), as_json)


@scenario_app.command("show")
def scenario_show(path: flags.OneScenario, as_json: flags.Json = False) -> None:
    """Show a scenario's cases, with ne and nb of every tensor."""
    cases = scenarios.show(path)
    show([scenarios.case_json(case) for case in cases], lambda: scenarios.render_show(cases), as_json)


@scenario_app.command("check")
def scenario_check(paths: flags.Scenarios, as_json: flags.Json = False) -> None:
    """Check scenario files, and report every mistake with its line."""
    checks = scenarios.check(paths)
    show([asdict(item) for item in checks], lambda: scenarios.render_check(checks), as_json)
    scenarios.raise_problems(checks)


@scenario_app.command("new")
def scenario_new(path: Path) -> None:
    """Write a commented scenario to start from."""
    OUT.print(f"wrote {scenarios.new(path)}")


@scenario_app.command("from-ops")
def scenario_from_ops(
    text: Annotated[
        str, typer.Argument(help="'FLASH_ATTN_EXT(hsk=64,...)', as any version of test-backend-ops prints it.")
    ],
) -> None:
    """Print the scenario of one of upstream's test cases."""
    print(scenarios.from_ops_yaml(text), end="")


@source_app.command("list")
def source_list(as_json: flags.Json = False) -> None:
    """List the sources that are pinned or in the cache."""
    rows = sources.list_sources()
    show([asdict(row) for row in rows], lambda: sources.render_list(rows), as_json)


@source_app.command("get")
def source_get(spec: Annotated[str, typer.Argument()] = DEFAULT_SOURCE, as_json: flags.Json = False) -> None:
    """Fetch a source into the cache."""
    with sources.download_bar(NOTES) as progress:
        summary = sources.get_source(spec, progress)
    show(asdict(summary), lambda: sources.render_summary(summary), as_json)


@source_app.command("show")
def source_show(spec: Annotated[str, typer.Argument()] = DEFAULT_SOURCE, as_json: flags.Json = False) -> None:
    """Show a source's llama.cpp build, features and flash-attention kernels."""
    with sources.download_bar(NOTES) as progress:
        details = sources.show_source(spec, progress)
    show(asdict(details), lambda: sources.render_details(details), as_json)


@device_app.command("list")
def device_list(devices: flags.Devices = None, as_json: flags.Json = False) -> None:
    """List the simulated GPUs."""
    catalogue = load_devices(devices)
    show(devices_show.device_list(catalogue), lambda: devices_show.render_list(catalogue), as_json)


@device_app.command("show")
def device_show(identifier: str, devices: flags.Devices = None, as_json: flags.Json = False) -> None:
    """Show one simulated GPU, each figure with its source."""
    device = find_device(load_devices(devices), identifier)
    show(devices_show.device_show(device), lambda: devices_show.render_show(device), as_json)


@contextlib.contextmanager
def exit_codes(as_json: bool = False) -> Iterator[None]:
    """Turn exceptions into exit codes, only here; with `as_json`, stdout gets the error as a document."""
    OUT.answered = False
    try:
        yield
        with writing(STDOUT):
            sys.stdout.flush()  # a full disk must show here, before the exit code is chosen
    except (KeyboardInterrupt, typer.Abort):
        NOTES.print("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        drop_stdout()
        sys.exit(141)
    except Exception as error:  # noqa: BLE001 - the process boundary
        end_with(error, as_json)


def end_with(error: Exception, as_json: bool) -> NoReturn:
    """Report the error and exit with its code; an unexpected exception is a bug and gets a traceback."""
    problem = problem_of(error)
    if problem is None:
        traceback.print_exception(error)
        problem = FattnProbeError("This is a bug in fattn-probe, not in your input.")
    try:
        show_error(problem, as_json)
        sys.stdout.flush()
    except (OSError, MachineError):  # stdout itself failed, and stderr has the error
        drop_stdout()
    sys.exit(problem.exit_code)


def problem_of(error: Exception) -> FattnProbeError | None:
    """The error to report to the user; None for a bug."""
    if isinstance(error, FattnProbeError):
        return error
    if isinstance(error, OSError | MemoryError):
        return machine_error(error)
    if hasattr(error, "format_message") and hasattr(error, "ctx"):  # of click, which typer brings or imports
        command = error.ctx.command_path if error.ctx else "fattn-probe"
        said = error.format_message() or "a command is missing"
        return InputError(f"{command}: {said} (see `{command} --help`)")
    return None


def drop_stdout() -> None:
    """Discard stdout's buffer: Python would write it again at exit, and fail again."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # a stream without a file has no such problem
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run the command line."""
    as_json = "--json" in sys.argv
    with exit_codes(as_json):
        code = app(standalone_mode=False)
    sys.exit(code)
