"""Try mutants: each with the tests that run its lines, the fastest first, until one fails."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

from fattn_probe.base.errors import ComparisonError
from tests.mutants.mutants import Mutant

HERE = Path(__file__).resolve().parents[2]
FOREVER = 900.0
LEAST, FACTOR = 60.0, 10.0
"""Seconds that the tests of a mutant may take, in addition to a factor times what they take without it."""

FIRST = 12
"""Tests that run alone at first: most mutants fail one of them, and a bare worker imports what it runs."""


@dataclass(frozen=True)
class Traced:
    """A test: its seconds, and the lines (module, line) that it runs."""

    name: str
    seconds: float
    lines: frozenset[tuple[str, int]] = field(repr=False)


class Worker:
    """A process that runs tests in forks, see `worker`."""

    def __init__(self, root: Path, log: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.mutants.worker", *arguments]
        self.log, self.errors = log, log.with_suffix(".errors").open("w+")
        path = os.pathsep.join(filter(None, (str(root), str(HERE), os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            command,
            cwd=root,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        hello = self.process.stdout.readline() if self.process.stdout else ""
        if not hello:
            self.errors.seek(0)
            raise ComparisonError(f"the tests cannot be collected:\n{self.errors.read()[-4000:]}")
        self.tests: list[str] = json.loads(hello).get("tests", [])

    def end(self) -> None:
        """Stop it."""
        with self.errors, self.process:
            self.process.kill()

    def run(self, tests: Sequence[str], seconds: float, **more: str) -> int:
        """The exit code of the tests, -1 if they took too long or were killed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"tests": tests, "seconds": seconds, "log": str(self.log), **more}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def lines(self, name: str) -> Traced:
        """A test with what it runs."""
        to = self.log.with_suffix(".lines")
        if self.run([name], FOREVER, to=str(to)) != 0:
            raise ComparisonError(f"{name} fails without a mutant:\n{self.log.read_text()[-4000:]}")
        seconds, lines = json.loads(to.read_text())
        return Traced(name, seconds, frozenset((module, line) for module, line in lines))


class Workers:
    """Some workers of each kind."""

    def __init__(self, root: Path, folder: Path, number: int, modules: Sequence[str], files: Sequence[str]) -> None:
        self.number = number
        self._free: dict[bool, SimpleQueue[Worker]] = {True: SimpleQueue(), False: SimpleQueue()}
        with ThreadPoolExecutor(number) as threads:
            wanted = [(folder / f"{index}.log", *modules, "--", *files) for index in range(number)]
            self.started = list(threads.map(lambda words: Worker(root, *words), wanted))
        bare = [Worker(root, folder / f"{number + index}.log", "--bare") for index in range(number)]
        for worker in self.started:
            self._free[False].put(worker)
        for worker in bare:
            self._free[True].put(worker)
        self.started += bare

    @contextmanager
    def one(self, *, bare: bool = False) -> Iterator[Worker]:
        """A worker that has nothing to do."""
        worker = self._free[bare].get()
        try:
            yield worker
        finally:
            self._free[bare].put(worker)

    def lines(self, name: str) -> Traced:
        """A test with what it runs."""
        with self.one() as worker:
            return worker.lines(name)


@contextmanager
def workers(root: Path, number: int, modules: Sequence[str], files: Sequence[str]) -> Iterator[Workers]:
    """Workers that end with the block."""
    with TemporaryDirectory() as folder:
        found = Workers(root, Path(folder), number, modules, files)
        try:
            yield found
        finally:
            for worker in found.started:
                worker.end()


@dataclass(frozen=True)
class Trial:
    """What is needed to try mutants: the tests with the lines that each runs, and the modules' sources."""

    pool: Workers
    tests: tuple[Traced, ...]
    sources: dict[str, list[str]]

    def noticed(self, mutant: Mutant) -> bool:
        """Whether a test fails with a mutant, does not end, or cannot be imported."""
        tests = self.tests_of(mutant)
        seconds = LEAST + FACTOR * sum(test.seconds for test in tests)
        names = [test.name for test in tests]
        with self.pool.one(bare=mutant.names is not None) as worker:
            some = (names[:FIRST], names[FIRST:])
            return any(part and worker.run(part, seconds, module=mutant.module, source=mutant.source) for part in some)

    def tests_of(self, mutant: Mutant) -> list[Traced]:
        """The tests that run a mutant, the fastest first."""
        wanted = set(self.lines_of(mutant))
        return sorted((test for test in self.tests if test.lines & wanted), key=lambda test: test.seconds)

    def lines_of(self, mutant: Mutant) -> Iterator[tuple[str, int]]:
        """The lines that bring a mutant to light: of a constant, those that name it; of a class, all of its module."""
        if mutant.names is None:
            yield from ((mutant.module, line) for line in mutant.lines)
        elif mutant.names:
            word = re.compile(rf"\b({'|'.join(mutant.names)})\b")
            for module, lines in self.sources.items():
                yield from ((module, number) for number, line in enumerate(lines, 1) if word.search(line))
        else:
            yield from ((mutant.module, number) for number in range(1, len(self.sources[mutant.module]) + 1))
