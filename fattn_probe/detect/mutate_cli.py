"""The command line of `mutate`."""

import math
from pathlib import Path
from typing import Annotated

import platformdirs
import typer

from fattn_probe import flags, setup
from fattn_probe.activity import Activity
from fattn_probe.console import NOTES, show
from fattn_probe.detect.measure import on_simulated
from fattn_probe.detect.mutate import run
from fattn_probe.detect.mutate_show import document, render
from fattn_probe.detect.schemata import FILES
from fattn_probe.detect.verdicts import Plan, parts_of
from fattn_probe.errors import InputError
from fattn_probe.regress.entries import Given
from fattn_probe.run.simulator import Simulation
from fattn_probe.source import DEFAULT_SOURCE

RESULTS = Path(platformdirs.user_data_dir("fattn-probe")) / "mutants.jsonl"


def mutate(
    suite_file: flags.SuiteFile = Path("quick"),
    on: flags.On = "",
    files: Annotated[
        list[str], typer.Option("--file", help="Only mutants of this file, such as fattn-vec.cuh; may be repeated.")
    ] = [],  # noqa: B006
    sample: Annotated[int, typer.Option(min=0, help="The number of mutants to try; 0 is all.")] = 0,
    seconds: Annotated[
        float, typer.Option(min=0, help="Start no run after this time, compiling included; 0: no limit.")
    ] = 0,
    most: Annotated[
        int, typer.Option(min=0, help="Cases of each kind of launches that try a mutant, the fastest; 0 is all.")
    ] = 0,
    upstream: Annotated[
        bool, typer.Option("--upstream", help="Judge as upstream's test does: by its bound of the NMSE alone.")
    ] = False,
    source: flags.Source = DEFAULT_SOURCE,
    patch: flags.Patches = [],  # noqa: B006
    results: Annotated[
        Path, typer.Option("--results", help="The file of verdicts, which are not made again.")
    ] = RESULTS,
    devices: flags.Devices = None,
    as_json: flags.Json = False,
) -> None:
    """Plant small faults in the attention kernels and their dispatch one by one, and count those a suite notices."""
    for name in files:
        if name not in FILES:
            raise InputError(f"--file {name}: mutants are made in {', '.join(FILES)}")
    given = Given(on, devices=devices)
    pairs = on_simulated("mutate", suite_file, given)
    options = setup.BuildFlags(source, patch).run_options(NOTES, Simulation())
    with Activity(NOTES, words="finding the cases and their kernels") as activity:
        session = setup.session_of(options, activity)
        parts = parts_of(((entry, target, given.checks(entry)) for entry, target in pairs), suite_file.parent, session)
        found = run(
            Plan(parts, tuple(files), sample, upstream, seconds or math.inf, most),
            session,
            results,
            activity.step,
            lambda verdict, done, total: activity.count(verdict.fate, done, total),
        )
    show(document(found), lambda: render(found), as_json)
