"""The command line of `triage`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe import flags as run_flags
from fattn_probe import setup
from fattn_probe.activity import Activity
from fattn_probe.console import NOTES, show
from fattn_probe.models import flags
from fattn_probe.models.request import Prompt, Request, parse_layers, parse_size
from fattn_probe.run.provenance import driver, versions
from fattn_probe.run.simulator import Simulation
from fattn_probe.scenario.files import RECORDED
from fattn_probe.scratch import scratch
from fattn_probe.source import DEFAULT_SOURCE
from fattn_probe.triage.advice import Flags, advice_of
from fattn_probe.triage.command import Triage
from fattn_probe.triage.document import document_of
from fattn_probe.triage.folder import check_folder, write_folder
from fattn_probe.triage.result import Result, raise_if_wrong
from fattn_probe.triage.show import render, report
from fattn_probe.triage.words import sentence


def triage(
    model: flags.Model,
    prompt: flags.PromptText = None,
    tokens: flags.Tokens = None,
    seed: flags.Seed = 0,
    generate: flags.Generate = 1,
    ctx: flags.Context = 0,
    batch: flags.Batch = 512,
    type_k: flags.TypeK = "f16",
    type_v: flags.TypeV = "f16",
    parallel: flags.Parallel = 1,
    layers: flags.Layers = "",
    budget: flags.Budget = "1G",
    on: run_flags.On = "",
    out: Annotated[
        Path | None, typer.Option("--out", file_okay=False, help="The folder for the answer; default: triage-MODEL.")
    ] = None,
    source: run_flags.Source = DEFAULT_SOURCE,
    patch: run_flags.Patches = [],  # noqa: B006
    threads: run_flags.Threads = None,
    timeout: run_flags.Timeout = 600.0,
    devices: run_flags.Devices = None,
    as_json: run_flags.Json = False,
) -> None:
    """Run a prompt through a model, and name the first op that is wrong: attention, another one, or none."""
    folder = out or Path(f"triage-{model.stem}")
    check_folder(folder)
    request = Request(
        model=model,
        prompt=Prompt(prompt, tokens or 0, seed),
        generate=generate,
        context=ctx,
        batch=batch,
        type_K=type_k,
        type_V=type_v,
        sequences=parallel,
        layers=parse_layers(layers),
        every=True,
        budget=parse_size(budget),
    )
    targets = setup.targets_of(on, devices, NOTES)
    chosen = setup.BuildFlags(source, patch, models=True)
    with Activity(NOTES) as activity, scratch() as recorded:
        options = chosen.run_options(NOTES, Simulation(threads=threads), timeout=timeout)
        session = setup.session_of(options, activity)
        result = Triage(session, request, targets, recorded, activity).run()
        advice = advice_of(result, Flags(folder, source, patch, devices))
        provenance = provenance_of(result)
        document = document_of(result, advice, provenance)
        files = [recorded / f"{case}{RECORDED}" for case in result.cases]
        write_folder(folder, document, report(result, advice, provenance), files)
    show(document | {"folder": str(folder)}, lambda: render(result, advice, str(folder)), as_json)
    raise_if_wrong(result.answer, sentence(result))


def provenance_of(result: Result) -> dict[str, str]:
    """The command, what ran, and the versions of the programs that ran it."""
    run = result.run
    found = {"command": shlex.join(["fattn-probe", *sys.argv[1:]])}
    found |= {"model": f"{run['model']['file']} ({run['model'].get('description', '?')})"}
    found |= {"source": f"{run['source']} (b{run['build_number']})", "driver": driver() or "none"}
    return found | versions()
