"""The command line of `mutate`."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import platformdirs
import typer

from fattn_probe.base.activity import Activity
from fattn_probe.base.console import NOTES, show
from fattn_probe.base.errors import InputError
from fattn_probe.cli import flags, setup
from fattn_probe.cli.commands import offered
from fattn_probe.cli.setup import BuildFlags, Where
from fattn_probe.daily.regress.entries import Given
from fattn_probe.lab.detect.measure import on_simulated
from fattn_probe.lab.detect.mutate import run
from fattn_probe.lab.detect.schema import FILES
from fattn_probe.lab.detect.show import mutation_document, render_mutation
from fattn_probe.lab.detect.verdicts import MutationPlan, parts_of

RESULTS = Path(platformdirs.user_data_dir("fattn-probe")) / "mutants.jsonl"


@dataclass(frozen=True)
class MutantChoice:
    """The mutants to try, and where"""

    files: Annotated[
        list[str], typer.Option("--file", help="Only mutants in this file, such as fattn-vec.cuh; may be repeated.")
    ] = field(default_factory=list)
    sample: Annotated[int, typer.Option(min=0, help="Number of mutants to try; 0: all.")] = 0
    seconds: Annotated[
        float,
        typer.Option(min=0, help="Start no mutant after N seconds, including compilation and baselines; 0: no limit."),
    ] = 0
    most: Annotated[
        int, typer.Option(min=0, help="Try a mutant only in the N fastest cases with the same launches; 0: all.")
    ] = 0
    upstream: Annotated[
        bool, typer.Option("--upstream", help="Judge as llama.cpp's test does: only with its bound on the NMSE.")
    ] = False


def mutate(
    suite_file: flags.SuiteFile = Path("quick"),
    *,
    where: Annotated[Where, offered("on", "devices")],
    tried: MutantChoice,
    build: Annotated[BuildFlags, offered("source", "patch")],
    results: Annotated[Path, typer.Option("--results", help="The file that stores verdicts, for reuse.")] = RESULTS,
    as_json: flags.Json = False,
) -> None:
    """Plant small faults in the attention kernels and their dispatch, and count those that a suite detects."""
    for name in tried.files:
        if name not in FILES:
            raise InputError(f"--file {name}: mutants are created only in {', '.join(FILES)}")
    given = Given(where.on, devices=where.devices, note=setup.note)
    pairs = on_simulated("mutate", suite_file, given)
    options = setup.run_options(build)
    with Activity(NOTES, words="finding the cases and their kernels") as activity:
        session = setup.session_of(options, activity)
        parts = parts_of(((entry, target, given.checks(entry)) for entry, target in pairs), suite_file.parent, session)
        found = run(
            MutationPlan(
                parts, tuple(tried.files), tried.sample, tried.upstream, tried.seconds or math.inf, tried.most
            ),
            session,
            results,
            activity.step,
            lambda verdict, done, total: activity.count(verdict.fate, done, total),
        )
    show(mutation_document(found), lambda: render_mutation(found), as_json)
