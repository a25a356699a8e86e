"""The command line of `capture`."""

from pathlib import Path
from typing import Annotated

import typer

from fattn_probe import flags, setup
from fattn_probe.activity import Activity
from fattn_probe.console import NOTES, show
from fattn_probe.device import load_devices, parse_target
from fattn_probe.models.capture import ModelCapture
from fattn_probe.models.request import Prompt, Request, parse_layers, parse_size
from fattn_probe.models.show import render
from fattn_probe.op.ggml_types import TypeName
from fattn_probe.run.simulator import Simulation
from fattn_probe.source import DEFAULT_SOURCE

MOST_TOKENS = 1 << 24
MOST_SEQUENCES = 256


def capture(
    model: Annotated[Path, typer.Argument(help="A model, as llama.cpp reads it.", metavar="MODEL.gguf")],
    out: Annotated[Path, typer.Option("--out", file_okay=False, help="The folder for the captures.")],
    prompt: Annotated[str | None, typer.Option(help="The text to run.", metavar="TEXT")] = None,
    tokens: Annotated[
        int | None, typer.Option(min=0, max=MOST_TOKENS, help="Instead of a text: a number of random tokens.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="The seed of the random tokens.")] = 0,
    generate: Annotated[int, typer.Option(min=0, max=MOST_TOKENS, help="Tokens to generate after the prompt.")] = 1,
    ctx: Annotated[
        int, typer.Option(min=0, max=1 << 30, help="Positions of each sequence; 0: as many as are needed.")
    ] = 0,
    batch: Annotated[int, typer.Option(min=1, max=MOST_TOKENS, help="Tokens of one evaluation.")] = 512,
    type_k: Annotated[TypeName, typer.Option(help="The type of the cache of K.")] = "f16",
    type_v: Annotated[TypeName, typer.Option(help="The type of the cache of V.")] = "f16",
    parallel: Annotated[int, typer.Option(min=1, max=MOST_SEQUENCES, help="Sequences side by side.")] = 1,
    layers: Annotated[str, typer.Option(help="Layers to record, such as 0,5-7; default: all.")] = "",
    every: Annotated[
        bool, typer.Option("--every", help="Record every evaluation; default: the last of the prompt, the last of all.")
    ] = False,
    budget: Annotated[str, typer.Option(help="The most that is recorded, such as 500M.", metavar="SIZE")] = "1G",
    on: Annotated[
        str,
        typer.Option("--on", help="cpu: ggml's CPU backend; sim:ID, gpu: the same, and each op on that GPU."),
    ] = "cpu",
    source: flags.Source = DEFAULT_SOURCE,
    patch: flags.Patches = [],  # noqa: B006
    threads: flags.Threads = None,
    timeout: flags.Timeout = 600.0,
    devices: flags.Devices = None,
    as_json: flags.Json = False,
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
        index = ModelCapture(session, request, target, out, activity.note, activity.step).run()
    show(index.to_json() | {"folder": str(out)}, lambda: render(index, str(out)), as_json)
