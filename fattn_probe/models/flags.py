"""The options of commands that run a model."""

from pathlib import Path
from typing import Annotated

import typer

from fattn_probe.op.ggml_types import TypeName

MOST_TOKENS = 1 << 24
MOST_SEQUENCES = 256
Model = Annotated[Path, typer.Argument(help="A model, as llama.cpp reads it.", metavar="MODEL.gguf")]
PromptText = Annotated[str | None, typer.Option("--prompt", help="The text to run.", metavar="TEXT")]
Tokens = Annotated[
    int | None, typer.Option(min=0, max=MOST_TOKENS, help="Instead of a text: a number of random tokens.")
]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="The seed of the random tokens.")]
Generate = Annotated[int, typer.Option(min=0, max=MOST_TOKENS, help="Tokens to generate after the prompt.")]
Context = Annotated[int, typer.Option(min=0, max=1 << 30, help="Positions of each sequence; 0: as many as are needed.")]
Batch = Annotated[int, typer.Option(min=1, max=MOST_TOKENS, help="Tokens of one evaluation.")]
TypeK = Annotated[TypeName, typer.Option(help="The type of the cache of K.")]
TypeV = Annotated[TypeName, typer.Option(help="The type of the cache of V.")]
Parallel = Annotated[int, typer.Option(min=1, max=MOST_SEQUENCES, help="Sequences side by side.")]
Layers = Annotated[str, typer.Option(help="Layers to record, such as 0,5-7; default: all.")]
Budget = Annotated[str, typer.Option(help="The most that is recorded, such as 500M.", metavar="SIZE")]
