"""Flags that commands share, as objects, and functions that set up builds, targets and sessions from them.

A parameter of one of these classes stands for all its flags; the class's docstring is their heading in `--help`.
"""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from fattn_probe.base.activity import MINUTE, Activity
from fattn_probe.base.console import NOTES, SHOWN_AFTER, rewrite
from fattn_probe.base.errors import BuildError, InputError, MachineError
from fattn_probe.cases.device import Target, load_devices, parse_targets
from fattn_probe.cases.scenario import Case
from fattn_probe.cli import flags
from fattn_probe.llama.build import open_build
from fattn_probe.llama.build.command import announced, status_line, steps_done
from fattn_probe.llama.build.key import Flavour, Manifest
from fattn_probe.llama.build.ninja import Progress, Report
from fattn_probe.llama.build.toolchain import find_toolchain
from fattn_probe.llama.source import DEFAULT_SOURCE, Tree, resolve
from fattn_probe.llama.source.command import download_bar
from fattn_probe.llama.source.patches import Patch, find
from fattn_probe.llama.source.tree import checkout_of
from fattn_probe.machine.run.command import Work
from fattn_probe.machine.run.prepare import prepare
from fattn_probe.machine.run.progress import Watch, progress_line
from fattn_probe.machine.run.session import RunOptions, Session, has_gpu
from fattn_probe.machine.run.simulator import Simulation

SIMULATED = "sim:h200"


@dataclass(frozen=True)
class Where:
    """Where to run, and for how long"""

    on: flags.On = ""
    devices: flags.Devices = None
    timeout: Annotated[
        float, typer.Option("--timeout", callback=flags.seconds, help="Time limit per run, in seconds.")
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
    check: flags.Check = False
    sanitize: Annotated[
        str, typer.Option("--sanitize", help="Simulator sanitizers: address, undefined, or address,undefined.")
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
            help="Simulator: seed of an adversarial thread order; 0: the normal order.",
        ),
    ] = 0
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, max=flags.MOST_THREADS, help="Simulator: host threads; default: all cores."),
    ] = None


def flavour_of(build: BuildFlags) -> Flavour:
    """The flavour: release, debug or check; InputError for `--debug` together with `--check`."""
    if build.debug and build.check:
        raise InputError("--debug and --check select different builds: choose one")
    return "debug" if build.debug else "check" if build.check else "release"


@functools.cache
def source_in(folder: Path) -> str:
    """The default source for commands run in `folder`: its checkout, which is announced once, or else the release."""
    checkout = checkout_of(folder)
    if checkout is None:
        return DEFAULT_SOURCE
    said = f"source: {checkout}, the checkout you are in (the release: --source {DEFAULT_SOURCE})"
    NOTES.print(said, style="dim", soft_wrap=True)
    return str(checkout)


def tree_of(build: BuildFlags, *, models: bool = False) -> Tree:
    """The source, fetched with a progress bar if it is not in the cache; with `models`, it must have libllama."""
    source = source_in(Path.cwd()) if build.source is None else build.source
    with download_bar(NOTES) as progress:
        return resolve(source, progress, models=models)


def same_again(source: str | None, build: BuildFlags, where: Where, /, **others: object) -> list[str]:
    """The flags that make another command use the same source, patches and devices, and the `others` that are set."""
    default = source == DEFAULT_SOURCE and checkout_of(Path.cwd()) is None  # a checkout is the default inside it
    told = {"source": None if default else source, "devices": where.devices, **others}
    words = [(f"--{name.replace('_', '-')}", value) for name, value in told.items() if value]
    words += [("--patch", name) for name in build.patch]
    return [word for flag, value in words for word in ([flag] if value is True else [flag, str(value)])]


def patches_of(build: BuildFlags, tree: Tree) -> tuple[Patch, ...]:
    """The patches of `--patch`, in order."""
    return tuple(find(name, tree) for name in build.patch)


def run_options(
    build: BuildFlags,
    where: Where = Where(),
    simulate: Simulate = Simulate(),
    *,
    repeat: int = 1,
    models: bool = False,
) -> RunOptions:
    """The options of a session; a build given with `--build` also determines the source."""
    flavour, made = flavour_of(build), open_build(build.folder) if build.folder else None
    if made and (other := lacking(made.manifest, build)):
        has = f"a {made.manifest.fingerprint.flavour} build of {made.manifest.source}"
        raise InputError(f"--build {build.folder}: it is {has} and is used unchanged, so drop {', '.join(other)}")
    tree = made.tree if made else tree_of(build, models=models)
    return RunOptions(
        tree=tree,
        flavour=flavour,
        sanitize=words(build.sanitize),
        patches=patches_of(build, tree) if tree else (),
        quants=words(build.quants),
        simulation=simulation_of(simulate),
        repeat=repeat,
        warmup=int(repeat > 1),
        timeout=where.timeout,
        build=made,
    )


def lacking(manifest: Manifest, build: BuildFlags) -> list[str]:
    """The flags that a manifest's build does not satisfy; every build satisfies the default flavour, `release`."""
    flavour, built = flavour_of(build), manifest.fingerprint
    different = {
        f"--{flavour}": flavour not in ("release", built.flavour),
        "--source": build.source not in (None, manifest.source),
        "--patch": not set(build.patch) <= set(manifest.patches),
        "--sanitize": not set(words(build.sanitize)) <= set(built.sanitize),
        "--quants": not set(words(build.quants)) <= set(built.quants),
    }
    return [flag for flag, is_different in different.items() if is_different]


def simulation_of(simulate: Simulate) -> Simulation:
    """The simulator's settings from the flags."""
    return Simulation(simulate.schedule, simulate.threads)


def words(text: str) -> tuple[str, ...]:
    """The words of a comma-separated flag."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def work_of(cases: Sequence[Case], where: Where, *, simulated: bool = False) -> list[tuple[Case, list[Target]]]:
    """Each case with its targets: those of `--on`, or the scenario's device, or this machine's default.

    With `simulated`, the default is a simulated GPU on every machine.
    """
    catalogue = load_devices(where.devices)
    if where.on:
        targets = list(parse_targets(where.on, catalogue))
        return [(case, targets) for case in cases]
    choose = chooser(simulated=simulated)
    return [(case, list(parse_targets(case.device or choose(), catalogue, f"{case.name}: device"))) for case in cases]


def targets_of(where: Where) -> list[Target]:
    """The targets of `--on`, or this machine's default."""
    return list(parse_targets(where.on or chooser()(), load_devices(where.devices)))


def chooser(*, simulated: bool = False) -> Callable[[], str]:
    """A function that returns the default target, and announces it once, with the reason."""

    @functools.cache
    def choose() -> str:
        found, reason = (SIMULATED, "this command needs a simulated GPU") if simulated else default_target()
        NOTES.print(f"running on {found} ({reason}; use --on to choose)", style="dim")
        return found

    return choose


def default_target() -> tuple[str, str]:
    """The default target and the reason: this machine's GPU if nvcc can build for it, otherwise a simulated GPU."""
    if not has_gpu():
        return SIMULATED, "this machine has no NVIDIA GPU"
    try:
        find_toolchain("cuda")
    except BuildError as error:
        return SIMULATED, f"this machine has a GPU, but {error}"
    return "gpu", "this machine has a GPU"


def build_progress(notes: Console, title: str = "building") -> Report:
    """A `Report` of builds: a title, then a line that is rewritten on a terminal, or else printed every minute."""
    announce, shown = announced(notes, title), time.monotonic()

    def report(progress: Progress) -> None:
        nonlocal shown
        announce(progress)
        if notes.is_terminal and progress.total:
            rewrite(notes, status_line(progress), last=progress.done == progress.total)
        elif progress.total and progress.seconds >= MINUTE and time.monotonic() - shown >= MINUTE:
            shown = time.monotonic()
            notes.print(Text(f"{title}: {steps_done(progress)}"), soft_wrap=True)

    return report


def session_of(options: RunOptions, activity: Activity) -> Session:
    """A session whose builds and long runs show their own progress lines in place of the activity's line."""
    notes = activity.console
    building = activity.beside(build_progress(notes), lambda progress: progress.done < progress.total)
    running = activity.beside(
        progress_line(notes), lambda progress: progress.seconds >= SHOWN_AFTER and not progress.ended
    )
    return Session(options, building, watch=Watch(running))


def prepared_session(options: RunOptions, work: Work, activity: Activity) -> Session:
    """A session whose builds contain all kernels that the work needs."""
    session = session_of(options, activity)
    activity.step("finding the kernels that the cases need")
    prepare(session, work)
    return session


def note(words: str) -> None:
    """Print a note about something that the command leaves out."""
    NOTES.print(words, style="dim")


def number_of(work: Work) -> int:
    """The number of (case, target) pairs in the work."""
    return sum(len(targets) for _, targets in work)


def require_matplotlib() -> None:
    """Raise MachineError if matplotlib is missing; it is optional, as it takes up a third of the installed size."""
    if find_spec("matplotlib") is None:
        raise MachineError("--plot needs matplotlib: pip install 'fattn-probe[plot]'")
