"""The command line of `fuzz`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe.base.activity import Activity
from fattn_probe.base.console import NOTES, show
from fattn_probe.base.errors import ComparisonError, InputError, LostError
from fattn_probe.base.host import cores
from fattn_probe.base.signals import terminated
from fattn_probe.cases.device import load_devices, parse_targets
from fattn_probe.cli import flags, setup
from fattn_probe.cli.commands import offered
from fattn_probe.cli.compare import JudgeFlags
from fattn_probe.cli.setup import SIMULATED, BuildFlags, Simulate, Where
from fattn_probe.lab.detect.measure import check as check_simulated
from fattn_probe.lab.fuzz.report import FuzzRun, document, render, write_cases
from fattn_probe.lab.fuzz.run import Fuzzer
from fattn_probe.llama.source import DEFAULT_SOURCE

MOST_NEW = 0.99
FINDINGS = Path("fuzz-findings")


@dataclass(frozen=True)
class Effort:
    """Time limits and processes"""

    minutes: Annotated[
        float | None, typer.Option(help="Stop after this many minutes; default: 1, or no limit with --cases.")
    ] = None
    cases: Annotated[int | None, typer.Option(min=1, help="Stop after this many cases.")] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random cases.")] = 0
    new_kernels: Annotated[
        float, typer.Option(callback=flags.share, help="Share of the time to spend on compiling new kernels.")
    ] = 0.4
    workers: Annotated[int | None, typer.Option(min=1, help="Number of processes; default: one per core.")] = None
    shrink: Annotated[
        float, typer.Option(callback=flags.seconds, help="Time limit in seconds for shrinking all findings at the end.")
    ] = 120.0


def fuzz(
    *,
    where: Annotated[Where, offered(on=SIMULATED, timeout=60.0)],
    effort: Effort,
    judge: Annotated[JudgeFlags, offered("model", "repeat")],
    build: Annotated[BuildFlags, offered("source", "patch", "check")],
    simulate: Annotated[Simulate, offered("schedule")],
    findings: Annotated[
        Path, typer.Option(file_okay=False, help="Write the scenario of each finding to this folder.", metavar="FOLDER")
    ] = FINDINGS,
    keep: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="Write passing cases with a new pair of features to this folder.",
            metavar="FOLDER",
        ),
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """Judge random scenarios, and shrink each failing one to the smallest that still fails."""
    targets = parse_targets(where.on, load_devices(where.devices))
    check_simulated("fuzz", targets, "can tell in advance which kernels a random case needs")
    limits = seconds_of(effort.minutes, effort.cases), effort.cases, effort.workers or cores()
    options = setup.run_options(build, where, simulate)
    run = FuzzRun(options.tree)
    with Activity(NOTES, words="planning") as activity:
        report = setup.session_of(options, activity).progress
        fuzzer = Fuzzer(options, targets, effort.seed, min(effort.new_kernels, MOST_NEW), judge.checks, report, *limits)
        run.judge(fuzzer, activity)
        if not terminated():  # unlike Ctrl-C, SIGTERM leaves no time to shrink the findings
            run.shrink(fuzzer, effort.shrink, findings, activity)
        for path in write_cases(run.kept, keep) if keep is not None else ():
            activity.note(f"wrote {path}")
    source = options.tree.spec if options.tree else DEFAULT_SOURCE
    model, repeat = "" if judge.model == "auto" else judge.model, judge.repeat if judge.repeat > 1 else 0
    more = {"model": model, "repeat": repeat, "schedule": simulate.schedule, "check": build.check}
    again = setup.same_again(source, build, where, **more)
    show(document(run), lambda: render(run, again), as_json)
    if run.findings:
        number = run.number("finding")
        raise ComparisonError(f"{number} of {run.cases} random cases fail, and no known llama.cpp defect explains it")
    if not run.cases:
        raise LostError("no case was judged in time: compiling the first kernels took longer; increase --minutes")


def seconds_of(minutes: float | None, cases: int | None) -> float | None:
    """The limit in seconds; None if only the number of cases limits the run."""
    if minutes is None:
        return 60.0 if cases is None else None
    if not 0 < minutes <= 60 * 24 * 30:
        raise InputError(f"--minutes {minutes:g}: not a number of minutes above 0, at most 43200")
    return 60 * minutes
