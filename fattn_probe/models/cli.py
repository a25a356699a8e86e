"""The command line of `capture`."""

from pathlib import Path
from typing import Annotated

import typer

from fattn_probe import flags as run_flags
from fattn_probe import setup
from fattn_probe.activity import Activity
from fattn_probe.console import NOTES, show
from fattn_probe.device import load_devices, parse_target
from fattn_probe.models import flags
from fattn_probe.models.capture import ModelCapture
from fattn_probe.models.on_device import place_of_model
from fattn_probe.models.request import Prompt, Request, parse_layers, parse_size
from fattn_probe.models.show import render
from fattn_probe.models.statistics_page import PAGE, described, document, write_page
from fattn_probe.run.simulator import Simulation
from fattn_probe.source import DEFAULT_SOURCE


def capture(
    model: flags.Model,
    out: Annotated[Path, typer.Option("--out", file_okay=False, help="The folder for the captures.")],
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
    every: Annotated[
        bool, typer.Option("--every", help="Record every evaluation; default: the last of the prompt, the last of all.")
    ] = False,
    budget: flags.Budget = "1G",
    stats: Annotated[
        bool, typer.Option("--stats", help=f"Show ranges of the values by layer, and write {PAGE}, by head.")
    ] = False,
    on: Annotated[
        str,
        typer.Option("--on", help="cpu, gpu: where the model runs; sim:ID: on the CPU, and each op on that GPU too."),
    ] = "cpu",
    source: run_flags.Source = DEFAULT_SOURCE,
    patch: run_flags.Patches = [],  # noqa: B006
    threads: run_flags.Threads = None,
    timeout: run_flags.Timeout = 600.0,
    devices: run_flags.Devices = None,
    as_json: run_flags.Json = False,
) -> None:
    """Run a prompt through a model, and record its attention ops as case files."""
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
        every=every,
        budget=parse_size(budget),
    )
    target = parse_target(on, load_devices(devices))
    chosen = setup.BuildFlags(source, patch, models=True)
    with Activity(NOTES) as activity:
        options = chosen.run_options(NOTES, Simulation(threads=threads), timeout=timeout)
        session = setup.session_of(options, activity)
        place = place_of_model(target)
        index = ModelCapture(session, request, target, out, activity.note, activity.step, place).run()
        values = described(index, out, activity.step) if stats else []
    if stats:
        write_page(values, index, out)
    found = {"statistics": document(values)} if stats else {}
    show(index.to_json() | {"folder": str(out)} | found, lambda: render(index, str(out), values), as_json)
