"""Set up what a command runs, from its flags: the build, the targets, the session."""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fattn_probe.activity import MINUTE, Activity
from fattn_probe.build import open_build
from fattn_probe.build.command import announced, status_line, steps_done
from fattn_probe.build.key import Flavour
from fattn_probe.build.ninja import Progress, Report
from fattn_probe.build.toolchain import find_toolchain
from fattn_probe.console import SHOWN_AFTER, rewrite
from fattn_probe.device import Target, every_device, load_devices, parse_targets
from fattn_probe.errors import BuildError, InputError, MachineError
from fattn_probe.run.command import Work
from fattn_probe.run.gpu import has_gpu
from fattn_probe.run.prepare import prepare
from fattn_probe.run.progress import Watch
from fattn_probe.run.progress_line import progress_line
from fattn_probe.run.session import RunOptions, Session
from fattn_probe.run.simulator import Simulation
from fattn_probe.scenario import Case
from fattn_probe.source import DEFAULT_SOURCE, Tree, resolve
from fattn_probe.source.command import download_bar
from fattn_probe.source.patches import Patch, find

SIMULATED = "sim:h200"


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
    models: bool = False
    """Whether the source must have libllama."""

    @property
    def flavour(self) -> Flavour:
        """release, debug or check; InputError for both `--debug` and `--check`."""
        if self.debug and self.check:
            raise InputError("--debug and --check select different builds: choose one")
        return "debug" if self.debug else "check" if self.check else "release"

    def tree(self, notes: Console) -> Tree:
        """The source, fetched if it is not in the cache, with a progress bar on `notes`."""
        with download_bar(notes) as progress:
            return resolve(self.source, progress, models=self.models)

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


def work_of(
    cases: Sequence[Case], on: str, devices: Path | None, notes: Console, *, simulated: bool = False, amd: bool = False
) -> list[tuple[Case, list[Target]]]:
    """Each case with its targets: `--on`, else the scenario's own device, else this machine's default.

    With `simulated`, the default is a simulated GPU on every machine. With `amd`, AMD's GPUs are known too.
    """
    catalogue = (every_device if amd else load_devices)(devices)
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
    """A title once there is something to build, and a line that is updated; without a terminal, a line a minute."""
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


def require_matplotlib() -> None:
    """MachineError without matplotlib, which only pictures need: it is a third of an installation."""
    if find_spec("matplotlib") is None:
        raise MachineError("--plot needs matplotlib: pip install 'fattn-probe[plot]'")
