"""The line that shows the progress of a long run, and the warning about a run that will take minutes."""

from rich.console import Console
from rich.text import Text

from fattn_probe.base.console import SHOWN_AFTER, rewrite
from fattn_probe.base.figures import clock
from fattn_probe.cases.op import Sizes
from fattn_probe.machine.run.progress import Report, RunProgress

MINUTE = 60.0
LONG = 2 * MINUTE
SURE_AFTER = 5.0
"""Seconds after which an estimate from the blocks done is good enough for a warning."""


def progress_line(notes: Console) -> Report:
    """A line that is rewritten during a run; one line per minute if stderr is not a terminal.

    A run that is estimated to take more than two minutes is announced once, with a smaller case.
    """
    warned: set[str] = set()
    minutes = 0

    def report(progress: RunProgress) -> None:
        nonlocal minutes
        sure = progress.seconds == 0 or progress.seconds >= SURE_AFTER
        if progress.left is not None and progress.left > LONG and sure and progress.name not in warned:
            warned.add(progress.name)
            text = f"{progress.name} will take about {clock(progress.seconds + progress.left)}."
            text += " `fattn-probe plan` shows its kernels without running them"
            smaller = smaller_case(progress.sizes)
            text += f"; with {smaller} in the scenario, it takes less." if smaller else "."
            notes.print(Text(text), soft_wrap=not notes.is_terminal)
        shown = progress.seconds >= SHOWN_AFTER
        minutes = minutes if progress.seconds >= MINUTE else 0
        if notes.is_terminal and shown:
            rewrite(notes, Text("") if progress.ended else line_of(progress))
        elif not notes.is_terminal and not progress.ended and progress.seconds >= (minutes + 1) * MINUTE:
            minutes = int(progress.seconds // MINUTE)
            notes.print(line_of(progress), soft_wrap=True)

    return report


def line_of(progress: RunProgress) -> Text:
    """`prefill on sim:h200: 40 of 132 blocks, 1:02, about 2:20 left`."""
    parts = [f"{progress.done} of {progress.blocks} blocks"] if progress.blocks else []
    parts.append(clock(progress.seconds))
    parts += [f"about {clock(progress.left)} left"] if progress.left is not None else []
    return Text(f"{progress.name}: {', '.join(parts)}")


def smaller_case(sizes: Sizes) -> str:
    """The fields that make a case smaller with the same K/V length, and the remaining share of the work."""
    if sizes.n_seq > 1:
        return f"`n_seq: 1` (1/{sizes.n_seq} of the work)"
    if sizes.n_head_kv > 1:
        group = sizes.n_head // sizes.n_head_kv
        return f"`n_head: {group}` and `n_head_kv: 1` (1/{sizes.n_head_kv} of the work)"
    return f"`n_q: {sizes.n_q // 8}` (1/8 of the work)" if sizes.n_q >= 64 else ""
