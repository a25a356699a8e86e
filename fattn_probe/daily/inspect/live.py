"""`fattn-probe debug`: a live gdb or cuda-gdb session at the first line of a case's kernel."""

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

import fattn_probe
from fattn_probe.base.arrays import Bytes
from fattn_probe.base.console import text_of
from fattn_probe.base.errors import InputError
from fattn_probe.base.process import run_attached
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.schema import TracePlace
from fattn_probe.cases.shipped import page
from fattn_probe.daily.inspect.anchors import matching, overlay_lines
from fattn_probe.daily.inspect.facts import Facts, block_at
from fattn_probe.daily.inspect.inspector import Inspector, wave_of
from fattn_probe.daily.inspect.procedures.warp import fiber
from fattn_probe.daily.inspect.view.show import (
    block_table,
    launch_lines,
    occupancy_legend,
    steps_in_words,
    tensor_table,
)
from fattn_probe.daily.inspect.view.work_picture import TerminalMap
from fattn_probe.llama.build import RUNNER, at_rest
from fattn_probe.llama.launch.families import BY_NAME
from fattn_probe.llama.launch.tiles import TILE, BlockWork
from fattn_probe.llama.source.features import CUDA
from fattn_probe.machine.debug.session import require_debugger

WIDTH = 100
START = "import sys; sys.path.insert(0, {root!r}); from fattn_probe.machine.debug import live; live.start({plan!r})"
WELCOME = """
{kernel} of {case}, block {block}, warp {warp}, lane {lane}: only this thread stops at `fattn break LOCATION`.
fattn tensors, fattn launch, fattn blocks: facts from an earlier run; fattn tile: the position of this thread.
fattn step: continue to its next KV step, where KQ_max and the row sum can be printed.
{docs}/tour.md, step 5, explains the kernel; `fattn-probe glossary TERM` explains a word."""
STEP = r"^\s*float KQ_max_new\["
"""A line in each KV step of every family's kernel, where KQ_max and the row sum (KQ_rowsum, KQ_sum) are in scope."""
SIMULATED = {"block": "simt::blockIdx", "thread": "simt::self->thread_idx"}
REAL = {"block": "blockIdx", "thread": "threadIdx"}
FIBER = "simt::self != 0 && {own[0]} == {warp} && {own[1]} == {lane}"
THREAD = "blockIdx.x == {0} && blockIdx.y == {1} && blockIdx.z == {2} && threadIdx.y == {warp} && threadIdx.x == {lane}"
ENTER = (
    "set cuda break_on_launch application",
    "continue",
    "set cuda break_on_launch none",
    "cuda block ({0},{1},{2}) thread ({lane},{warp},0)",
)
"""Commands that stop in the next kernel launched on a GPU; `*fattn_kernel` is the kernel's host stub."""


def debug(inspector: Inspector, case: Case, inputs: Mapping[str, Bytes], target: Target, facts: Facts) -> int:
    """Hand the terminal to the debugger until the user quits it; returns its exit code.

    `facts` come from the same inspector, so the build has every kernel that runs.
    """
    at = case.inspect.trace or TracePlace()
    debugger = inspector.options.debugger_on(target)
    where = f"case {case.name} on {target}: --at"
    if at.kb0 is not None:
        raise InputError(f"{where}: debug opens at the kernel's first line; leave out kb0, and use `fattn step` there")
    if facts.blocks:
        block_at(facts, at.block, at.warp, where)
    build = inspector.session.build_for(target, RUNNER)
    with inspector.place(case, inputs) as folder, at_rest(build) as programs:
        (folder / "plan.json").write_text(json.dumps(plan_of(inspector, facts, target, at)))
        python = START.format(root=str(Path(fattn_probe.__file__).parents[1]), plan=str(folder / "plan.json"))
        program = [str(programs.runner), *inspector.words(target)]
        words = [*debugger, "-q", "-ex", f"python {python}", "--args", *program]
        return hand_over(words, {**os.environ, "DEBUGINFOD_URLS": "", **inspector.session.env(target)}, folder)


def plan_of(inspector: Inspector, facts: Facts, target: Target, at: TracePlace) -> dict[str, Any]:
    """The plan for `fattn_probe.machine.debug.live`."""
    build = inspector.session.build_for(target, RUNNER)
    simulated = target.engine == "sim"
    block = next((item.blockIdx for item in facts.blocks if item.block == at.block), (at.block, 0, 0))
    kernel = facts.choice.kernel if facts.choice else "the kernel"
    family = BY_NAME.get(facts.choice.family) if facts.choice else None
    lines = overlay_lines(build.folder / "overlay" / CUDA / family.file) if family else []
    steps = [f"{family.file}:{line}" for line in matching(lines, STEP)] if family else []
    tree = inspector.session.options.tree
    original: list[str] = []  # lines rewritten for the simulator keep their original numbers
    if simulated and tree is not None and not inspector.session.options.patches:
        original = [f"set substitute-path overlay/{CUDA} {tree.root / CUDA}"]
    return {
        "sections": {
            "tensors": text_of(tensor_table(facts.tensors), WIDTH),
            "launch": text_of(Group(launch_lines(facts), *map(Text, occupancy_legend(facts))), WIDTH),
            "blocks": text_of(Group(TerminalMap(facts), block_table(facts.blocks)), WIDTH),
        },
        "work": {", ".join(map(str, item.blockIdx)): list(work_lines(item)) for item in facts.blocks},
        "steps": steps,
        "condition": (FIBER if simulated else THREAD).format(
            *block, warp=at.warp, lane=at.lane or 0, own=fiber(wave_of(target))
        ),
        "launch": inspector.located(build).locations["launch"][0],
        "before": [
            "set breakpoint pending on",
            "set print frame-arguments presence",
            f"directory {build.folder}",
            *original,
        ],
        "at_launch": [f"set var simt::focus.block = {at.block}"] if simulated else [],
        "enter": [] if simulated else [text.format(*block, warp=at.warp, lane=at.lane or 0) for text in ENTER],
        "welcome": WELCOME.format(
            kernel=kernel, case=facts.about["case"], block=at.block, warp=at.warp, lane=at.lane or 0, docs=page("guide")
        ),
    } | (SIMULATED if simulated else REAL)


def work_lines(block: BlockWork) -> Iterator[str]:
    """Lines with a block's work: the same values that `fattn blocks` shows."""
    if block.kbc is not None:
        yield f"earlier run: kbc {block.kbc} to {block.kbc_stop}"
    for work in block.tiles:
        tile = ", ".join(f"{name} {value}" for name, value in zip(TILE, work.tile, strict=True))
        yield f"earlier run: {tile}, kb0 {steps_in_words(work)}"


def hand_over(argv: Sequence[str], env: Mapping[str, str], cwd: Path | None = None) -> int:
    """Hand the terminal to a debugger until the user quits it; returns its exit code. Ctrl-C goes to the debugger."""
    require_debugger(argv)
    before = signal.signal(signal.SIGINT, lambda *_: None)  # the debugger would inherit SIG_IGN
    try:
        return run_attached(argv, env=env, cwd=cwd)[0]
    finally:
        signal.signal(signal.SIGINT, before)
