"""Finds state that leaks between ops: compares each case's output after other cases with that of a separate run."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from fattn_probe.base.digest import hexdigest
from fattn_probe.base.files import scratch
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.llama.build.key import RUNNER
from fattn_probe.llama.build.symbols import demangle
from fattn_probe.machine.run.capture import FiledInputs, make_case_file
from fattn_probe.machine.run.frames import short_kernel
from fattn_probe.machine.run.outcome import Lost, Missing, Ran, RunOutcome, Unsupported
from fattn_probe.machine.run.runner import RunFiles, RunnerEndedError, SharedRunner
from fattn_probe.machine.run.session import Session

ENDED = "the process ended"
MOST_SHRUNK = 3
"""The most cases whose order is shrunk; each takes dozens of processes."""
Output = str
"""A digest of a case's dst and launches; for a run without an output, ENDED and the reason."""


@dataclass(frozen=True)
class OrderDifference:
    """A case whose output after other cases differs from that of a separate run.

    `after` are the cases before it in its process; if `shrunk`, a minimal set that still shows the difference.
    """

    case: str
    after: tuple[str, ...]
    output: Output
    shrunk: bool = False

    def __str__(self) -> str:
        what = self.output if self.output.startswith(ENDED) else "different bits or launches from a separate run,"
        return f"{what} after [{', '.join(self.after)}]" if self.shrunk else f"{what} after {len(self.after)} other ops"


@dataclass(frozen=True)
class Line:
    """Cases that run one after another on a target, with their case files.

    With `reuse`, a simulated GPU gives tensors of identical ops the same addresses, as a real GPU does. Without it, no
    address is reused, so that a use after free is found.
    """

    session: Session
    target: Target
    files: Mapping[str, FiledInputs]
    folder: Path
    reuse: bool = False

    def outputs(self, names: Sequence[str]) -> Iterator[Output]:
        """The outputs of these cases in a new process, up to the first case without an output.

        LostError if the process does not start, or is killed from outside, for example when memory runs out.
        """
        command = self.session.command(self.target, RUNNER)
        env = {**(command.env or {}), **({"FATTN_PROBE_SIM_REUSE": "1"} if self.reuse else {})}
        command = replace(command, words=(*command.words, "--keep"), env=env)
        with SharedRunner() as shared:
            for name in names:
                try:
                    files = RunFiles(self.files[name].file, self.folder / "out.gguf")
                    yield (output := output_of(shared.runner(command).run(files)))
                except RunnerEndedError as error:
                    if error.ending is None or isinstance(error.ending, Lost):
                        raise
                    yield (output := ended(error.ending))
                if output.startswith(ENDED):
                    return

    def last(self, names: Sequence[str]) -> Output:
        """The output of the last case, run after the others; empty if one of the others crashes the process."""
        found = list(self.outputs(names))
        return found[-1] if len(found) == len(names) else ""

    def differences(self, order: Sequence[str], expected: Mapping[str, Output]) -> Iterator[OrderDifference]:
        """The cases of an order that have an unexpected output; after a crash, a new process runs the next cases."""
        start = 0
        while start < len(order):
            place = start
            for place, output in enumerate(self.outputs(order[start:]), start):
                if output != expected[order[place]]:
                    yield OrderDifference(order[place], tuple(order[start:place]), output)
            start = place + 1

    def shrunk(self, found: OrderDifference, expected: Output) -> OrderDifference:
        """The difference with a minimal set of cases before it; unchanged if it cannot be reproduced."""

        def shows(before: Sequence[str]) -> bool:
            return self.last([*before, found.case]) not in ("", expected)

        return replace(found, after=tuple(fewest(found.after, shows)), shrunk=True) if shows(found.after) else found


def output_of(outcome: RunOutcome) -> Output:
    """The digest of a run's results, or ENDED and the reason."""
    if not isinstance(outcome, Ran) or outcome.result.dst is None:
        return ended(outcome)
    launches = "".join(f"{launch.spelling} {launch.geometry}" for launch in outcome.launches)
    return hexdigest((launches, outcome.result.dst.tobytes()))


def ended(outcome: RunOutcome) -> Output:
    """The text that stands in for a missing output."""
    if isinstance(outcome, Ran | Unsupported):
        return f"{ENDED} ({outcome.reason if isinstance(outcome, Unsupported) else 'no output'})"
    if isinstance(outcome, Missing):  # the case's own kernels were compiled when it ran alone
        return f"{ENDED} (another kernel is launched: {short_kernel(demangle(outcome.symbol))})"
    return f"{ENDED} ({outcome.message})"


def fewest(items: Sequence[str], shows: Callable[[Sequence[str]], bool]) -> Sequence[str]:
    """A subsequence for which `shows` is true, but false if any one item is removed (ddmin)."""
    parts = 2
    while len(items) > 1:
        size = -(-len(items) // parts)
        starts = range(0, len(items), size)
        halves = [items[start : start + size] for start in starts] if parts == 2 else []
        rests = [[*items[:start], *items[start + size :]] for start in starts]
        smaller = next((some for some in (*halves, *rests) if shows(some)), None)
        if smaller is not None:
            items, parts = smaller, max(parts - 1, 2)
        elif size == 1:
            return items
        else:
            parts = min(2 * parts, len(items))
    return [] if items and shows([]) else items


def alone(session: Session, case: Case, target: Target) -> Output:
    """The output of a case in a separate process; a case that returns ENDED is left out of orders."""
    with scratch() as folder:
        made = make_case_file(case, folder / "case.gguf")
        return output_of(replace(session).run(case, made, target))  # a session without the shared runner


def differences(
    session: Session, cases: Sequence[Case], target: Target, seed: int, expected: Mapping[str, Output]
) -> list[OrderDifference]:
    """Each case's first difference from a separate run, in the random order of `seed`.

    Even seeds reuse addresses, and put ops of equal shapes and types next to each other: a host that remembers the last
    op's kernel or mask scan by its shapes and addresses shows it only then.
    """
    order = random.Random(seed).sample(list(expected), len(expected))
    if reuse := seed % 2 == 0:
        ops = {case.name: case.op for case in cases}
        order.sort(key=lambda name: (astuple(replace(ops[name].sizes, n_kv=0)), ops[name].type_K, ops[name].type_V))
    with scratch() as folder:
        files = {case.name: make_case_file(case, folder / f"{place}.gguf") for place, case in enumerate(cases)}
        line = Line(session, target, files, folder, reuse)
        found: dict[str, OrderDifference] = {}
        for difference in line.differences(order, expected):
            if difference.case not in found:
                shrinks = sum(one.shrunk for one in found.values()) < MOST_SHRUNK
                found[difference.case] = line.shrunk(difference, expected[difference.case]) if shrinks else difference
        return list(found.values())
