"""The command line of `study`."""

from pathlib import Path
from typing import Annotated

import typer

from fattn_probe import flags
from fattn_probe.activity import Activity
from fattn_probe.console import NOTES, show
from fattn_probe.errors import InputError
from fattn_probe.scenario.files import one_case
from fattn_probe.study.algorithms import Algorithm
from fattn_probe.study.command import H200_SMS, Options, raise_if_different, study_case
from fattn_probe.study.flash_attention_1 import A100_SRAM
from fattn_probe.study.schedules import Choice
from fattn_probe.study.show import render, study_json
from fattn_probe.study.show_precisions import render_table3, table3_json
from fattn_probe.study.table3 import measure
from fattn_probe.study.warpgroups import Ring, Schedule

STEPS = 16


def study(
    path: flags.MaybeScenario = None,
    algorithm: Annotated[Algorithm, typer.Option(help="The algorithm to show; all of them are run.")] = "fa2",
    tile_q: Annotated[int | None, typer.Option(help="B_r, queries per tile; 64; fa1: from --memory.", min=1)] = None,
    tile_kv: Annotated[int | None, typer.Option(help="B_c, KV rows per tile; 64; fa1: from --memory.", min=1)] = None,
    head: Annotated[int, typer.Option(help="The head to study.", min=0)] = 0,
    sequence: Annotated[int, typer.Option(help="The sequence to study.", min=0)] = 0,
    case_name: Annotated[str, typer.Option("--case", help="The case to study, if the scenario has several.")] = "",
    memory: Annotated[int, typer.Option(help="fa1: on-chip memory M, in elements.", min=1)] = A100_SRAM,
    splits: Annotated[int, typer.Option(help="split-kv: number of pieces.", min=1)] = 4,
    blocks: Annotated[int, typer.Option(help="stream-k: CUDA blocks, without --inspected.", min=1)] = H200_SMS,
    inspected: Annotated[
        Path | None, typer.Option(help="stream-k: take the blocks from the output of inspect --json.", metavar="FILE")
    ] = None,
    schedule: Annotated[Schedule, typer.Option(help="fa3: what overlaps what.")] = "both",
    stages: Annotated[int, typer.Option(help="fa3: stages of the ring of K and V.", min=1)] = 2,
    ring: Annotated[
        Ring, typer.Option(help="fa3: a stage holds K and V of a tile, or K and V have a ring each.")
    ] = "apart",
    fp8: Annotated[bool, typer.Option("--fp8", help="Measure the error of f16 and FP8 attention on the head.")] = False,
    table3: Annotated[
        int | None, typer.Option(help="Measure the FlashAttention-3 paper's table 3 on N heads.", metavar="N", min=1)
    ] = None,
    backward: Annotated[
        bool, typer.Option("--backward", help="Run the backward pass too, by recomputation from L.")
    ] = False,
    steps: Annotated[int, typer.Option(help="Number of steps to print.", min=0)] = STEPS,
    as_json: flags.Json = False,
) -> None:
    """Trace an attention algorithm through one head, tile by tile, and compare all algorithms on it."""
    if table3 is not None:
        if path is not None:
            raise InputError(f"--table3 draws its own data; leave out {path}")
        show_table3(table3, as_json)
        return
    if path is None:
        raise InputError("study needs a SCENARIO; `fattn-probe scenario list` has the shipped ones")
    choice = Choice(schedule, stages, ring)
    options = Options(head, sequence, tile_q, tile_kv, memory, splits, blocks, inspected, backward, fp8, choice)
    with Activity(NOTES) as activity:
        done = study_case(one_case(path, case_name), algorithm, options, activity.step)
    show(study_json(done), lambda: render(done, steps), as_json)
    raise_if_different(done)


def show_table3(heads: int, as_json: bool) -> None:
    """Measure table 3 and print it."""
    with Activity(NOTES) as activity:
        found = measure(heads, activity.step)
    show(table3_json(found), lambda: render_table3(found), as_json)
