"""Flags that several commands share."""

from pathlib import Path
from typing import Annotated

import typer
from typer.models import ArgumentInfo

from fattn_probe import shipped

FAULTS = "faults/"


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
    """Shell completion of shipped patches; the faults of the corpus only after `faults/`."""
    from fattn_probe.source.patches import shipped as patches  # the source room, for completion only

    if incomplete.startswith(FAULTS):
        return [name for name in shipped.names("fault") if name.startswith(incomplete)]
    names = {patch.name for patch in patches()} | {FAULTS}
    return sorted(name for name in names if name.startswith(incomplete))


def complete_target(incomplete: str) -> list[str]:
    """Shell completion of the last target of a comma-separated list."""
    from fattn_probe.device import load_devices  # the device room, for completion only

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
MaybeScenario = Annotated[Path | None, scenario_argument("A shipped scenario by name, or a file.", "SCENARIO")]
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
        "--schedule",
        min=0,
        max=2**31 - 1,
        help="Simulator: an adversarial order of threads, 1 and up; 0: the normal one.",
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
