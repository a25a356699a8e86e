"""Flags that several commands share, and their values."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer.models import ArgumentInfo

from fattn_probe import shipped
from fattn_probe.activity import Activity
from fattn_probe.build import open_build
from fattn_probe.build.command import announced, status_line
from fattn_probe.build.key import Flavour
from fattn_probe.build.ninja import Progress, Report
from fattn_probe.build.toolchain import find_toolchain
from fattn_probe.console import SHOWN_AFTER, rewrite
from fattn_probe.device import Target, load_devices, parse_targets
from fattn_probe.errors import BuildError, InputError
from fattn_probe.files import is_folder
from fattn_probe.run.command import Work
from fattn_probe.run.gpu import has_gpu
from fattn_probe.run.prepare import prepare
from fattn_probe.run.progress import Watch
from fattn_probe.run.progress_line import progress_line
from fattn_probe.run.session import RunOptions, Session
from fattn_probe.run.simulator import Simulation
from fattn_probe.scenario import Case, expand, load
from fattn_probe.source import DEFAULT_SOURCE, Tree, resolve
from fattn_probe.source.command import download_bar
from fattn_probe.source.patches import Patch, find
from fattn_probe.source.patches import shipped as shipped_patches

SIMULATED = "sim:h200"


def scenario_path(word: str | Path) -> Path:
    """The scenario file or folder that a command-line word names."""
    return shipped.find("scenario", word)


def suite_path(word: str | Path) -> Path:
    """The suite file that a command-line word names."""
    return shipped.find("suite", word)


def complete_scenario(incomplete: str) -> list[str]:
    """Shell completion of shipped scenarios."""
    return [name for name in shipped.names("scenario") if name.startswith(incomplete)]


def complete_suite(incomplete: str) -> list[str]:
    """Shell completion of shipped suites."""
    return [name for name in shipped.names("suite") if name.startswith(incomplete)]


def complete_patch(incomplete: str) -> list[str]:
    """Shell completion of shipped patches."""
    return sorted({patch.name for patch in shipped_patches() if patch.name.startswith(incomplete)})


def complete_target(incomplete: str) -> list[str]:
    """Shell completion of the last target of a comma-separated list."""
    before, comma, last = incomplete.rpartition(",")
    targets = ["gpu", "cpu", *(f"sim:{name}" for name in load_devices())]
    return [before + comma + target for target in targets if target.startswith(last)]


def scenario_argument(text: str, metavar: str = "SCENARIO...") -> ArgumentInfo:
    """An argument for shipped scenarios by name, and paths."""
    found: ArgumentInfo = typer.Argument(
        help=text, metavar=metavar, parser=scenario_path, autocompletion=complete_scenario
    )
    return found


Scenarios = Annotated[list[Path], scenario_argument("Shipped scenarios by name, files, or folders of files.")]
OneScenario = Annotated[Path, scenario_argument("A shipped scenario by name, or a file.", "SCENARIO")]
SuiteFile = Annotated[
    Path,
    typer.Argument(
        help="A shipped suite by name, or a file.",
        metavar="SUITE",
        parser=suite_path,
        autocompletion=complete_suite,
    ),
]
On = Annotated[
    str,
    typer.Option(
        "--on",
        help="Where to run, comma-separated: sim:ID, gpu, gpu:N, cpu.",
        metavar="TARGETS",
        autocompletion=complete_target,
    ),
]
Source = Annotated[
    str, typer.Option("--source", help="llama.cpp tree: pypi:NAME==VERSION, git:REF, or a folder.", metavar="SOURCE")
]
Patches = Annotated[
    list[str],
    typer.Option("--patch", help="A patch by name or file; may be repeated.", autocompletion=complete_patch),
]
Debug = Annotated[bool, typer.Option("--debug", help="Debug build: -G -g for a GPU, -O0 -g for the simulator.")]
Check = Annotated[bool, typer.Option("--check", help="Simulator: check every memory access of the kernels.")]
Sanitize = Annotated[str, typer.Option("--sanitize", help="Simulator: sanitizers, address,undefined or one of them.")]
Quants = Annotated[
    str, typer.Option("--quants", help="K-V type pairs to compile vec kernels for, such as q8_0-f16, or all.")
]
BuildFolder = Annotated[Path | None, typer.Option("--build", help="Use the build in this folder, as it is.")]
MOST_SECONDS = 30 * 24 * 3600.0
MOST_THREADS = 1024
MOST_REPEATS = 100_000


def seconds(value: float) -> float:
    """A timeout in seconds: above 0, at most 30 days; rejects NaN too."""
    if 0 < value <= MOST_SECONDS:
        return value
    raise typer.BadParameter(f"{value:g} is not a number of seconds from above 0 to {MOST_SECONDS:.0f}")


def share(value: float) -> float:
    """A share, from 0 to 1; rejects NaN too."""
    if 0 <= value <= 1:
        return value
    raise typer.BadParameter(f"{value:g} is not a share from 0 to 1")


Schedule = Annotated[
    int,
    typer.Option(
        "--schedule", min=0, max=2**31 - 1, help="Simulator: seed of an adversarial warp schedule; 0: the normal one."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, max=MOST_THREADS, help="Simulator: host threads; default: all cores."),
]
Timeout = Annotated[float, typer.Option("--timeout", callback=seconds, help="Seconds until a run is lost.")]
Repeat = Annotated[int, typer.Option("--repeat", min=1, max=MOST_REPEATS, help="Timed runs; the median is shown.")]
Devices = Annotated[Path | None, typer.Option("--devices", help="YAML file with your own GPUs (docs/devices.md).")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@dataclass(frozen=True)
class BuildFlags:
    """The flags that select the build to run, as the user gave them."""

    source: str = DEFAULT_SOURCE
    patches: Sequence[str] = ()
    debug: bool = False
    check: bool = False
    sanitize: str = ""
    quants: str = ""
    folder: Path | None = None

    @property
    def flavour(self) -> Flavour:
        """release, debug or check; InputError for both `--debug` and `--check`."""
        if self.debug and self.check:
            raise InputError("--debug and --check select different builds: choose one")
        return "debug" if self.debug else "check" if self.check else "release"

    def tree(self, notes: Console) -> Tree:
        """The source, fetched if it is not in the cache, with a progress bar on `notes`."""
        with download_bar(notes) as progress:
            return resolve(self.source, progress)

    def found_patches(self, tree: Tree) -> tuple[Patch, ...]:
        """The patches, in order."""
        return tuple(find(name, tree) for name in self.patches)

    def run_options(self, notes: Console, simulation: Simulation, **rest: float) -> RunOptions:
        """The options of a session; a build given by `--build` brings its own source."""
        flavour, build = self.flavour, open_build(self.folder) if self.folder else None
        tree = build.tree if build else self.tree(notes)
        return RunOptions(
            tree=tree,
            flavour=flavour,
            sanitize=words(self.sanitize),
            patches=self.found_patches(tree) if tree else (),
            quants=words(self.quants),
            simulation=simulation,
            build=build,
            **rest,  # type: ignore[arg-type]
        )


def words(text: str) -> tuple[str, ...]:
    """The words of a comma-separated flag."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def cases_of(paths: Sequence[Path]) -> list[Case]:
    """The cases of scenario files and folders; one InputError reports the mistakes of all files."""
    files = [file for path in paths for file in (sorted(path.glob("*.yaml")) if is_folder(path) else [path])]
    cases, problems = [], []
    for file in files:
        try:
            cases += expand(load(file))
        except InputError as error:
            problems.append(str(error))
    if problems:
        raise InputError("\n".join(problems))
    if not cases:
        raise InputError(f"no scenario in {', '.join(map(str, paths))}" if paths else "no scenario was given")
    return cases


def one_case(path: Path, name: str) -> Case:
    """The case named `name`, or the only case; else InputError."""
    cases = cases_of([path])
    found = [case for case in cases if case.name == name or not name]
    if len(found) != 1:
        raise InputError(f"{path} has these cases; choose one with --case: {', '.join(case.name for case in cases)}")
    return found[0]


def work_of(
    cases: Sequence[Case], on: str, devices: Path | None, notes: Console, *, simulated: bool = False
) -> list[tuple[Case, list[Target]]]:
    """Each case with its targets: `--on`, else the scenario's own device, else this machine's default.

    With `simulated`, the default is a simulated GPU on every machine.
    """
    catalogue = load_devices(devices)
    if on:
        targets = list(parse_targets(on, catalogue))
        return [(case, targets) for case in cases]
    choose = chooser(notes, simulated=simulated)
    return [(case, list(parse_targets(case.device or choose(), catalogue))) for case in cases]


def targets_of(on: str, devices: Path | None, notes: Console) -> list[Target]:
    """The targets of `--on`, else this machine's default."""
    return list(parse_targets(on or chooser(notes)(), load_devices(devices)))


def chooser(notes: Console, *, simulated: bool = False) -> Callable[[], str]:
    """A function that returns the default target, and announces it once with the reason."""

    @functools.cache
    def choose() -> str:
        found, reason = (SIMULATED, "this command needs a simulated GPU") if simulated else default_target()
        notes.print(f"running on {found} ({reason}; --on chooses)", style="dim", highlight=False)
        return found

    return choose


def default_target() -> tuple[str, str]:
    """This machine's GPU if nvcc can build for it, else a simulated one; and the reason."""
    if not has_gpu():
        return SIMULATED, "this machine has no NVIDIA GPU"
    try:
        find_toolchain("cuda")
    except BuildError as error:
        return SIMULATED, f"this machine has a GPU, but {error}"
    return "gpu", "this machine has a GPU"


def build_progress(notes: Console, title: str = "building") -> Report:
    """A title once there is something to build; on a terminal, also one line below it that is updated."""
    announce = announced(notes, title)

    def report(progress: Progress) -> None:
        announce(progress)
        if notes.is_terminal and progress.total:
            rewrite(notes, status_line(progress), last=progress.done == progress.total)

    return report


def session_of(options: RunOptions, activity: Activity) -> Session:
    """A session whose builds and long runs have their own lines in place of the activity's."""
    notes = activity.console
    building = activity.beside(build_progress(notes), lambda progress: progress.done < progress.total)
    running = activity.beside(
        progress_line(notes), lambda progress: progress.seconds >= SHOWN_AFTER and not progress.ended
    )
    return Session(options, building, watch=Watch(running))


def prepared_session(options: RunOptions, work: Work, activity: Activity) -> Session:
    """A session whose builds have all kernels that the work needs."""
    session = session_of(options, activity)
    activity.step("finding the kernels that the cases need")
    prepare(session, work)
    return session


def number_of(work: Work) -> int:
    """How many cases on targets the work has."""
    return sum(len(targets) for _, targets in work)
