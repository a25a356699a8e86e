"""What a worker process does: it runs chosen tests with one module's source changed, each time in a fork of itself.

So nothing is imported twice: `collected` has imported the package and all tests; in the fork, the module's functions
get the changed code. Other changes, such as of a constant, need a `bare` worker, whose forks import fattn_probe anew.
"""

import functools
import gc
import importlib
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import gguf  # noqa: F401
import hypothesis
import numpy as np  # noqa: F401
import pydantic  # noqa: F401
import pytest
import rich.console  # noqa: F401
import typer  # noqa: F401
import yaml  # noqa: F401
from _pytest.config import _prepareconfig

from fattn_probe.base.errors import ComparisonError
from fattn_probe.base.workers import Tell

MEMORY = 8 << 30
"""Bytes that a fork may take: a mutant may ask for any size."""
OPTIONS = ("-q", "-n", "0", "-p", "no:cacheprovider", "--hypothesis-profile", "mutants", "--no-header")
IMPORTED = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # some modules are here before pytest
NO_SUCH_TEST = 4
FOREVER = 900.0
FIRST = 12
"""Tests that run alone at first: most mutants fail one of them, and a bare worker imports what it runs."""


@dataclass(frozen=True)
class Traced:
    """A test: its seconds, and the lines (module, line) that it runs."""

    name: str
    seconds: float
    lines: frozenset[tuple[str, int]] = field(repr=False)


def module_name(path: str) -> str:
    """The name of a module by its path."""
    return path.removesuffix(".py").replace("/", ".")


class Replaced(importlib.machinery.SourceFileLoader):
    """Imports one module from another source."""

    def __init__(self, module: str, source: str) -> None:
        super().__init__(module_name(module), str(Path(module).absolute()))
        self.source = source

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Of this module only."""
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, fullname: str) -> CodeType:
        """The other source, compiled."""
        return compile(self.source, self.path, "exec")


def codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a module's functions and methods, without those inside functions."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and not inner.co_name.startswith("<"):
            is_class = not inner.co_flags & 0x1  # functions have fast locals
            yield from codes(inner) if is_class else [inner]


class Functions:
    """The functions of some modules, by file and qualified name, and all caches of functions' results."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.paths = {module: str(Path(module).absolute()) for module in modules}
        self.found: dict[tuple[str, str], list[FunctionType]] = {}
        self.caches: list[Any] = []
        files = set(self.paths.values())
        for one in gc.get_objects():
            if type(one) is functools._lru_cache_wrapper:
                self.caches.append(one)
            elif type(one) is FunctionType and one.__code__.co_filename in files:
                self.found.setdefault((one.__code__.co_filename, one.__code__.co_qualname), []).append(one)
        gc.freeze()  # a fork shares what no collection touches

    def change(self, module: str, source: str) -> None:
        """Give the functions of a module the code of another source; forget what was computed before."""
        for cache in self.caches:
            cache.cache_clear()
        path = self.paths[module]
        for code in codes(compile(source, path, "exec")):
            for function in self.found.get((path, code.co_qualname), []):
                function.__code__ = code


class Worker:
    """A process that runs tests in forks; what they print goes to `log`."""

    def __init__(self) -> None:
        self.log = Path(tempfile.gettempdir()) / f"{os.getpid()}.log"

    def answer(self, tests: Sequence[str], module: str, source: str) -> int:
        """In a fork of a bare worker: import the changed module, and run the tests."""
        sys.meta_path.insert(0, Replaced(module, source))
        importlib.import_module(module_name(module))
        code = int(pytest.main(["-x", *OPTIONS, *IMPORTED, *tests]))
        if code == NO_SUCH_TEST:  # a parameter has another name now: run the files
            files = dict.fromkeys(test.partition("::")[0] for test in tests)
            code = int(pytest.main(["-x", *OPTIONS, *IMPORTED, *files]))
        return code

    def notices(self, tests: Sequence[str], module: str, source: str, seconds: float) -> bool:
        """Whether a test fails with another source of a module, takes too long, or cannot be imported."""
        parts = [part for part in (tests[:FIRST], tests[FIRST:]) if part]
        return any(self.in_fork(functools.partial(self.answer, part, module, source), seconds) for part in parts)

    def in_fork(self, function: Callable[[], int], seconds: float) -> int:
        """The exit code of a fork, -1 for one that took too long or was killed."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
                print_to(self.log)
                code = function()
            except BaseException:  # noqa: BLE001 (a fork must not go on as the worker)
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        deadline = time.monotonic() + seconds
        ended, status, pause = 0, 0, 0.001
        try:
            while not ended and time.monotonic() < deadline:
                ended, status = os.waitpid(pid, os.WNOHANG)
                time.sleep(0 if ended else pause)
                pause = min(2 * pause, 0.05)
        finally:
            if not ended:
                os.kill(pid, signal.SIGKILL)
                status = os.waitpid(pid, 0)[1]
        return max(-1, os.waitstatus_to_exitcode(status))


class Collected(Worker):
    """A worker with all tests of some files."""

    def __init__(self, modules: Sequence[str], files: Sequence[str]) -> None:
        super().__init__()
        print_to(self.log)
        config = _prepareconfig(["-s", *OPTIONS, *IMPORTED, *files])
        config._do_configure()
        self.session = pytest.Session.from_config(config)
        config.hook.pytest_sessionstart(session=self.session)
        config.hook.pytest_collection(session=self.session)
        self.items = {item.nodeid: item for item in self.session.items}
        self.followed = {str(Path(path).absolute()): path for path in (*modules, *files)}
        self.functions, self.lines = Functions(modules), set[tuple[str, int]]()

    def names(self) -> list[str]:
        """The tests."""
        if self.session.testsfailed or not self.items:
            raise ComparisonError(f"the tests cannot be collected:\n{self.log.read_text()[-4000:]}")
        return list(self.items)

    def answer(self, tests: Sequence[str], module: str, source: str) -> int:
        """In the fork: run tests until one fails."""
        self.functions.change(module, source)
        return self.run(tests)

    def run(self, tests: Sequence[str]) -> int:
        """Run tests until one fails; 1 if one does."""
        chosen = [self.items[name] for name in tests]
        for item, following in zip(chosen, [*chosen[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.session.testsfailed:
                return 1
        return 0

    def traced(self, name: str) -> Traced:
        """A test with what it runs."""
        to = self.log.with_suffix(".lines")

        def run() -> int:
            start = time.monotonic()
            sys.settrace(self.trace)  # type: ignore[arg-type]
            code = self.run([name])
            sys.settrace(None)
            if code:
                self.session.config.pluginmanager.get_plugin("terminalreporter").summary_failures()
            to.write_text("\n".join([str(time.monotonic() - start), *(f"{path} {line}" for path, line in self.lines)]))
            return code

        if self.in_fork(run, FOREVER) != 0:
            raise ComparisonError(f"{name} fails without a mutant:\n{self.log.read_text()[-4000:]}")
        seconds, *lines = to.read_text().splitlines()
        places = (line.split(" ") for line in lines)
        return Traced(name, float(seconds), frozenset((module, int(line)) for module, line in places))

    def trace(self, frame: FrameType, event: str, argument: object) -> object:
        """Python's trace function: keeps the lines of the modules and of the tests."""
        module = self.followed.get(frame.f_code.co_filename)
        if module is None:
            return None
        self.lines.add((module, frame.f_lineno))
        return self.trace


def print_to(log: Path) -> None:
    """Let this process print to a file."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)


@contextmanager
def working(
    tell: Tell, root: Path, kind: Callable[[], Worker]
) -> Iterator[Callable[[Callable[[Worker], object]], object]]:
    """A worker process's function: it calls a task with the process's worker."""
    os.chdir(root)
    sys.path.insert(0, str(root))
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile("mutants", deadline=None, database=None, derandomize=True, phases=phases)
    worker = kind()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # tests/conftest.py has undone it: the parent decides
    yield lambda task: task(worker)
