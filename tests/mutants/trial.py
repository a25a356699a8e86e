"""Try mutants: each with the tests that run its lines, the fastest first, until one fails."""

import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fattn_probe.base.errors import LostError
from fattn_probe.base.workers import Died, Workers
from tests.mutants.mutants import Mutant
from tests.mutants.worker import Collected, Traced, Worker, working

LEAST, FACTOR = 60.0, 10.0
"""Seconds that the tests of a mutant may take, in addition to a factor times what they take without it."""
Task = partial[Any]
"""What a worker is to do: a method of it, with the arguments by name."""


def tried(
    mutants: Sequence[Mutant], modules: Sequence[str], files: Sequence[str], root: Path, jobs: int
) -> Generator[tuple[Mutant, bool]]:
    """Each mutant, as it is known whether a test of some files notices it: fails, does not end, cannot be imported."""
    sources = {path: (root / path).read_text().splitlines() for path in (*modules, *files)}
    with Workers[Task, Any](partial(working, root=root, kind=partial(Collected, modules, files)), jobs) as pool:
        ((_, names),) = known(pool, [partial(Collected.names)])
        tests = [test for _, test in known(pool, [partial(Collected.traced, name=name) for name in names])]
        yield from noticed(pool, [mutant for mutant in mutants if mutant.names is None], tests, sources)
    with Workers[Task, Any](partial(working, root=root, kind=Worker), jobs) as pool:
        yield from noticed(pool, [mutant for mutant in mutants if mutant.names is not None], tests, sources)


def noticed(
    pool: Workers[Task, Any], mutants: Sequence[Mutant], tests: Sequence[Traced], sources: Mapping[str, Sequence[str]]
) -> Iterator[tuple[Mutant, bool]]:
    """Each mutant with whether a test notices it, by workers of the kind that it needs."""
    of_task: dict[Task, Mutant] = {}

    def tasks() -> Iterator[Task]:
        for mutant in mutants:
            chosen = those_that_run(mutant, tests, sources)
            seconds, names = LEAST + FACTOR * sum(test.seconds for test in chosen), [test.name for test in chosen]
            task = partial(Worker.notices, module=mutant.module, source=mutant.source, tests=names, seconds=seconds)
            of_task[task] = mutant
            yield task

    for task, answer in known(pool, tasks()):
        yield of_task.pop(task), answer


def known(pool: Workers[Any, Any], tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """The answers; LostError for a task that ends its workers."""
    for task, answer in pool.answers(tasks):
        if isinstance(answer, Died):
            raise LostError(f"{str(task)[:200]}: {answer.how}")
        yield task, answer


def those_that_run(mutant: Mutant, tests: Iterable[Traced], sources: Mapping[str, Sequence[str]]) -> list[Traced]:
    """The tests that run a mutant, the fastest first."""
    wanted = set(lines_of(mutant, sources))
    return sorted((test for test in tests if test.lines & wanted), key=lambda test: test.seconds)


def lines_of(mutant: Mutant, sources: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, int]]:
    """The lines that bring a mutant to light: its own; of a constant, those that name it; of a class, its module's."""
    yield from ((mutant.module, line) for line in mutant.lines)
    if mutant.names is None:
        return
    if mutant.names:
        word = re.compile(rf"\b({'|'.join(mutant.names)})\b")
        for module, lines in sources.items():
            yield from ((module, number) for number, line in enumerate(lines, 1) if word.search(line))
    else:
        yield from ((mutant.module, number) for number in range(1, len(sources[mutant.module]) + 1))
