"""The command line of `capture`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fattn_probe.base.activity import Activity
from fattn_probe.base.console import NOTES, show
from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.cases.op.op import TypeName
from fattn_probe.cli import flags, setup
from fattn_probe.cli.commands import offered
from fattn_probe.cli.setup import BuildFlags, Simulate, Where
from fattn_probe.daily.models.capture import ModelCapture
from fattn_probe.daily.models.on_device import place_of_model
from fattn_probe.daily.models.program import Prompt, Request, parse_layers, parse_size
from fattn_probe.daily.models.show import render
from fattn_probe.daily.models.statistics import PAGE, described, document, write_page

MOST_TOKENS = 1 << 24
MOST_SEQUENCES = 256


@dataclass(frozen=True)
class Model:
    """The run of the model, and the ops to record"""

    model: Annotated[Path, typer.Argument(help="A model file for llama.cpp.", metavar="MODEL.gguf")]
    prompt: Annotated[str | None, typer.Option("--prompt", help="The prompt's text.", metavar="TEXT")] = None
    tokens: Annotated[
        int | None, typer.Option(min=0, max=MOST_TOKENS, help="Number of random tokens, instead of text.")
    ] = None
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the random tokens.")] = 0
    generate: Annotated[int, typer.Option(min=0, max=MOST_TOKENS, help="Tokens to generate after the prompt.")] = 1
    ctx: Annotated[int, typer.Option(min=0, max=1 << 30, help="Context size of a sequence, in tokens; 0: auto.")] = 0
    batch: Annotated[int, typer.Option(min=1, max=MOST_TOKENS, help="Tokens per evaluation.")] = 512
    type_k: Annotated[TypeName, typer.Option(help="The type of the K cache.")] = "f16"
    type_v: Annotated[TypeName, typer.Option(help="The type of the V cache.")] = "f16"
    parallel: Annotated[int, typer.Option(min=1, max=MOST_SEQUENCES, help="Number of parallel sequences.")] = 1
    layers: Annotated[str, typer.Option(help="Layers to record, such as 0,5-7; default: all.")] = ""
    budget: Annotated[str, typer.Option(help="Limit on the recorded data, such as 500M.", metavar="SIZE")] = "1G"

    def request(self, *, every: bool) -> Request:
        """The parsed request; with `every`, it records every evaluation."""
        return Request(
            model=self.model,
            prompt=Prompt(self.prompt, self.tokens or 0, self.seed),
            generate=self.generate,
            context=self.ctx,
            batch=self.batch,
            type_K=self.type_k,
            type_V=self.type_v,
            sequences=self.parallel,
            layers=parse_layers(self.layers),
            every=every,
            budget=parse_size(self.budget),
        )


def capture(
    *,
    model: Model,
    where: Annotated[Where, offered("devices", "timeout")],
    build: Annotated[BuildFlags, offered("source", "patch")],
    simulate: Annotated[Simulate, offered("threads")],
    out: Annotated[Path, typer.Option("--out", file_okay=False, help="The folder for the captures.")],
    every: Annotated[
        bool, typer.Option("--every", help="Record every evaluation, not only the prompt's last one and the final one.")
    ] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help=f"Show the range of values per layer; write {PAGE}, which adds each head.")
    ] = False,
    on: Annotated[
        str,
        typer.Option(
            "--on", help="Where the model runs: cpu or gpu; sim:ID: on the CPU, and each op also on that GPU."
        ),
    ] = "cpu",
    as_json: flags.Json = False,
) -> None:
    """Run a prompt through a model, and record its attention ops as case files."""
    request = model.request(every=every)
    target = parse_target(on, load_devices(where.devices))
    with Activity(NOTES) as activity:
        session = setup.session_of(setup.run_options(build, where, simulate, models=True), activity)
        place = place_of_model(target)
        index = ModelCapture(session, request, target, out, activity.note, activity.step, place).run()
        values = described(index, out, activity.step) if stats else {}
    if stats:
        write_page(values, index, out)
    found = {"statistics": document(values)} if stats else {}
    show(index.to_json() | {"folder": str(out)} | found, lambda: render(index, str(out), values), as_json)
