"""The command line of `fuzz`."""

from pathlib import Path
from typing import Annotated

import typer

from fattn_probe import flags, setup
from fattn_probe.activity import Activity
from fattn_probe.compare.judge.checks import Checks, UseModel
from fattn_probe.console import NOTES, show
from fattn_probe.detect.measure import check as check_simulated
from fattn_probe.device import load_devices, parse_targets
from fattn_probe.errors import ComparisonError, InputError, LostError
from fattn_probe.fuzz.command import Run
from fattn_probe.fuzz.features import Kept
from fattn_probe.fuzz.keep import write_cases
from fattn_probe.fuzz.report import Tally, document, render
from fattn_probe.fuzz.run import Fuzzer, Limits
from fattn_probe.regress import pool
from fattn_probe.run.simulator import Simulation
from fattn_probe.source import DEFAULT_SOURCE

MOST_NEW = 0.99
FINDINGS = Path("fuzz-findings")


def fuzz(
    on: flags.On = setup.SIMULATED,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after so many minutes; default: 1, or no limit with --cases.")
    ] = None,
    cases: Annotated[int | None, typer.Option(min=1, help="Stop after so many cases.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Another seed gives other cases.")] = 0,
    new_kernels: Annotated[
        float, typer.Option(callback=flags.share, help="The share of the time for compiling new kernels.")
    ] = 0.4,
    model: Annotated[
        UseModel, typer.Option(help="Compare with the rounding model too; never: the error model alone decides.")
    ] = "auto",
    repeat: Annotated[
        int, typer.Option(help="Runs of each case; all must give the same bits.", min=1, max=flags.MOST_REPEATS)
    ] = 1,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one for each core.")] = None,
    findings: Annotated[
        Path, typer.Option(file_okay=False, help="Write the scenario of each finding to this folder.", metavar="FOLDER")
    ] = FINDINGS,
    shrink: Annotated[
        float, typer.Option(callback=flags.seconds, help="Seconds for shrinking all findings, after the run.")
    ] = 120.0,
    keep: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="Write the passing cases that show a new pair of features to this folder.",
            metavar="FOLDER",
        ),
    ] = None,
    source: flags.Source = DEFAULT_SOURCE,
    patch: flags.Patches = [],  # noqa: B006
    check: flags.Check = False,
    schedule: flags.Schedule = 0,
    timeout: flags.Timeout = 60.0,
    devices: flags.Devices = None,
    as_json: flags.Json = False,
) -> None:
    """Judge random scenarios, and shrink those that fail to the smallest that shows it."""
    targets = parse_targets(on, load_devices(devices))
    check_simulated("fuzz", targets, "say in advance which kernels a random case needs")
    limits = Limits(seconds_of(minutes, cases), cases, workers or pool.cores())
    chosen = setup.BuildFlags(source, patch, check=check)
    options = chosen.run_options(NOTES, Simulation(schedule), timeout=timeout)
    run = Run(Tally(), Kept(options.tree))
    with Activity(NOTES, words="planning") as activity:
        report = setup.session_of(options, activity).progress
        fuzzer = Fuzzer(
            options, targets, seed, min(new_kernels, MOST_NEW), Checks(model, repeat=repeat), limits, report
        )
        run.judge(fuzzer, activity)
        run.shrink(fuzzer, shrink, findings, activity)
        for path in write_cases(run.kept.cases, keep) if keep is not None else ():
            activity.note(f"wrote {path}")
    words = {"--source": source, "--devices": devices, "--model": model, "--repeat": repeat, "--schedule": schedule}
    plain = {"--source": DEFAULT_SOURCE, "--devices": None, "--model": "auto", "--repeat": 1, "--schedule": 0}
    again = [word for flag, value in words.items() if value != plain[flag] for word in (flag, str(value))]
    again += [word for name in patch for word in ("--patch", name)] + ["--check"] * check
    show(document(run.tally, run.smallest), lambda: render(run.tally, run.smallest, again), as_json)
    raise_if_found(run.tally)


def seconds_of(minutes: float | None, cases: int | None) -> float | None:
    """The limit in seconds; None if only the number of cases ends the run."""
    if minutes is None:
        return 60.0 if cases is None else None
    if not 0 < minutes <= 60 * 24 * 30:
        raise InputError(f"--minutes {minutes:g}: a number of minutes from above 0 to 43200")
    return 60 * minutes


def raise_if_found(tally: Tally) -> None:
    """End the command: ComparisonError (exit 5) for findings, LostError (4) if nothing was judged."""
    if tally.findings:
        number = tally.number("finding")
        raise ComparisonError(f"{number} of {tally.cases} random cases fail by no known defect of upstream's")
    if not tally.cases:
        raise LostError("no case was judged in the time: compiling the first kernels took longer; give more --minutes")
