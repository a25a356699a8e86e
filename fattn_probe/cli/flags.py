"""Arguments and flags that need no build, with their shell completion, and checks of their values."""

from pathlib import Path
from typing import Annotated

import typer
from typer.models import ArgumentInfo

from fattn_probe.cases import shipped

FAULTS = "faults/"


def scenario_path(word: str | Path) -> Path:
    """The scenario file or folder that a command-line word names, or a case in a file, as `FILE/CASE`."""
    from fattn_probe.cases.scenario.cases import cases_like  # imports the scenario room, only if a word is given

    return shipped.find("scenario", word, cases_like)


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
    """Shell completion of shipped patches; the faults in the corpus only after `faults/`."""
    from fattn_probe.llama.source.patches import shipped as patches  # imports the source room, for completion only

    if incomplete.startswith(FAULTS):
        return [name for name in shipped.names("fault") if name.startswith(incomplete)]
    names = {patch.name for patch in patches()} | {FAULTS}
    return sorted(name for name in names if name.startswith(incomplete))


def complete_target(incomplete: str) -> list[str]:
    """Shell completion of the last target in a comma-separated list."""
    from fattn_probe.cases.device import load_devices  # imports the device room, for completion only

    before, comma, last = incomplete.rpartition(",")
    targets = ["gpu", "cpu", *(f"sim:{name}" for name in load_devices())]
    return [before + comma + target for target in targets if target.startswith(last)]


def scenario_argument(text: str, metavar: str = "SCENARIO...") -> ArgumentInfo:
    """An argument that accepts names of shipped scenarios, and paths."""
    found: ArgumentInfo = typer.Argument(
        help=text, metavar=metavar, parser=scenario_path, autocompletion=complete_scenario
    )
    return found


SEVERAL = scenario_argument("Shipped scenarios or cases by name, files, FILE/CASE, or folders.")
ONE = scenario_argument("A shipped scenario or case by name, a file, or FILE/CASE.", "SCENARIO")
Scenarios = Annotated[list[Path], SEVERAL]
MaybeScenarios = Annotated[list[Path] | None, SEVERAL]
OneScenario = Annotated[Path, ONE]
MaybeScenario = Annotated[Path | None, ONE]
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
MOST_SECONDS = 30 * 24 * 3600.0
MOST_THREADS = 1024


def seconds(value: float) -> float:
    """Check a timeout in seconds: above 0, at most 30 days, not NaN."""
    if 0 < value <= MOST_SECONDS:
        return value
    raise typer.BadParameter(f"{value:g} is not a number of seconds above 0, at most {MOST_SECONDS:.0f}")


def share(value: float) -> float:
    """Check a share: from 0 to 1, not NaN."""
    if 0 <= value <= 1:
        return value
    raise typer.BadParameter(f"{value:g} is not a share from 0 to 1")


CaseName = Annotated[str, typer.Option("--case", help="The case, if there are several.", metavar="NAME")]
Devices = Annotated[
    Path | None, typer.Option("--devices", help="A YAML file with your own GPUs: `devices: {mine: {like: h200}}`.")
]
Check = Annotated[bool, typer.Option("--check", help="Simulator: check every memory access of the kernels.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
