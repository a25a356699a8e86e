"""`fattn-probe debug`: the live gdb or cuda-gdb, at the first line of a case's kernel."""

import contextlib
import io
import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType

import fattn_probe
from fattn_probe.arrays import Bytes
from fattn_probe.build import RUNNER
from fattn_probe.debug.session import INSTALL
from fattn_probe.device import Target
from fattn_probe.errors import BuildError
from fattn_probe.inspect.facts import Facts
from fattn_probe.inspect.inspector import DEBUGGERS, Inspector
from fattn_probe.inspect.view.show import launch_lines
from fattn_probe.inspect.view.tables import block_table, tensor_table
from fattn_probe.inspect.view.terminal_map import TerminalMap
from fattn_probe.scenario import Case
from fattn_probe.scenario.schema import TracePlace
from fattn_probe.source.features import CUDA

START = "import sys; sys.path.insert(0, {root!r}); from fattn_probe.debug import live; live.start({plan!r})"
WELCOME = """
{kernel} of {case}, block {block}, warp {warp}, lane {lane}: only this thread stops at `fattn break LOCATION`.
fattn tensors, fattn launch, fattn blocks: the facts found before; fattn tile: the position of this thread."""
SETTINGS = ("set breakpoint pending on", "set print frame-arguments presence", "set print static-members off")
SIMULATED = {"block": "simt::blockIdx", "thread": "simt::self->thread_idx"}
REAL = {"block": "blockIdx", "thread": "threadIdx"}
FIBER = "simt::self != 0 && simt::self->warp->index == {warp} && simt::self->lane == {lane}"
THREAD = "blockIdx.x == {0} && blockIdx.y == {1} && blockIdx.z == {2} && threadIdx.y == {warp} && threadIdx.x == {lane}"
ENTER = (
    "set cuda break_on_launch application",
    "continue",
    "set cuda break_on_launch none",
    "cuda block ({0},{1},{2}) thread ({lane},{warp},0)",
)
"""Commands that stop in the next kernel launched on a GPU: `*fattn_kernel` is its stub on the host."""


def debug(inspector: Inspector, case: Case, inputs: Mapping[str, Bytes], target: Target, facts: Facts) -> int:
    """Hand the terminal to the debugger until the user quits it; returns its exit code.

    `facts` come from the same inspector, so the build has every kernel.
    """
    at = case.inspect.trace or TracePlace()
    debugger = inspector.options.debugger or (DEBUGGERS[target.engine],)
    build = inspector.session.build_for(target, RUNNER)
    with inspector.place(case, inputs) as folder:
        plan = plan_of(inspector, facts, target, at)
        (folder / "plan.json").write_text(json.dumps(plan))
        root = Path(fattn_probe.__file__).parents[1]
        python = START.format(root=str(root), plan=str(folder / "plan.json"))
        program = [str(build.runner), *inspector.words(target)]
        with interrupts_are_the_debuggers():
            try:
                return subprocess.call(
                    [*debugger, "-q", "-ex", f"python {python}", "--args", *program],
                    cwd=folder,
                    env=inspector.environment(target),
                )
            except FileNotFoundError as error:
                raise BuildError(f"{debugger[0]} is not on this machine. To install it: {INSTALL}") from error


def plan_of(inspector: Inspector, facts: Facts, target: Target, at: TracePlace) -> dict[str, Any]:
    """The plan for `fattn_probe.debug.live`."""
    build = inspector.session.build_for(target, RUNNER)
    simulated = target.engine == "sim"
    block = next((item.blockIdx for item in facts.blocks if item.block == at.block), (at.block, 0, 0))
    kernel = facts.choice.kernel if facts.choice else "the kernel"
    return {
        "sections": sections(facts),
        "condition": (FIBER if simulated else THREAD).format(*block, warp=at.warp, lane=at.lane or 0),
        "launch": inspector.located(build).locations["launch"][0],
        "before": [
            "set breakpoint pending on",
            "set print frame-arguments presence",
            f"directory {build.folder}",
            *_original_sources(inspector, target),
        ],
        "at_launch": [f"set var simt::focus.block = {at.block}"] if simulated else [],
        "enter": [] if simulated else [text.format(*block, warp=at.warp, lane=at.lane or 0) for text in ENTER],
        "welcome": WELCOME.format(
            kernel=kernel, case=facts.about["case"], block=at.block, warp=at.warp, lane=at.lane or 0
        ),
    } | (SIMULATED if simulated else REAL)


def _original_sources(inspector: Inspector, target: Target) -> Iterator[str]:
    """Show upstream's lines instead of the simulator's rewritten ones; their numbers are the same."""
    tree = inspector.session.options.tree
    if target.engine == "sim" and tree is not None and not inspector.session.options.patches:
        yield f"set substitute-path overlay/{CUDA} {tree.root / CUDA}"


def sections(facts: Facts) -> dict[str, str]:
    """The texts that `fattn tensors`, `launch` and `blocks` print."""
    return {
        "tensors": as_text(tensor_table(facts.tensors)),
        "launch": as_text(launch_lines(facts.launch)),
        "blocks": as_text(Group(TerminalMap(facts), block_table(facts.blocks))),
    }


def as_text(shown: RenderableType) -> str:
    """The rendered text without colours."""
    console = Console(file=io.StringIO(), width=100, highlight=False, emoji=False)
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@contextlib.contextmanager
def interrupts_are_the_debuggers() -> Iterator[None]:
    """Let Ctrl-C stop the program in the debugger, not fattn-probe."""
    before = signal.signal(signal.SIGINT, lambda *_: None)  # the debugger would inherit SIG_IGN
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
