"""Runs chosen tests with one module's source changed: each time in a fork, so that nothing is imported twice.

It collects all tests, and then reads requests from stdin and answers on stdout, a line of JSON each. In the fork, the
functions of the module get the changed code. A change outside functions, such as a constant's, is imported by a second
worker, which starts with `--bare` and imports fattn_probe anew in each fork.
"""

import functools
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
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

MEMORY = 8 << 30
"""Bytes that a fork may take: a mutant may ask for any size."""
OPTIONS = ("-q", "-n", "0", "-p", "no:cacheprovider", "--hypothesis-profile", "mutants", "--no-header")
IMPORTED = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # some modules are here before pytest
NO_SUCH_TEST = 4
ENDED = "finished"


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


class Serving:
    """A pytest plugin that answers requests instead of running the tests that were collected."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.modules, self.lines = {str(Path(module).absolute()): module for module in modules}, set[tuple[str, int]]()

    def trace(self, frame: FrameType, event: str, argument: object) -> object:
        """Python's trace function: keeps the lines of the modules."""
        module = self.modules.get(frame.f_code.co_filename)
        if module is None:
            return None
        self.lines.add((module, frame.f_lineno))
        return self.trace

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Answer requests until there are no more."""
        items, self.functions = {item.nodeid: item for item in session.items}, Functions(list(self.modules.values()))
        serve({"tests": list(items)}, lambda request: self.answer(session, items, request))
        return True

    def answer(self, session: pytest.Session, items: dict[str, pytest.Item], request: dict[str, Any]) -> int:
        """In the fork: run tests until one fails."""
        chosen = [items[name] for name in request["tests"]]
        if "source" in request:
            self.functions.change(request["module"], request["source"])
        start = time.monotonic()
        if "to" in request:
            sys.settrace(self.trace)  # type: ignore[arg-type]
        for item, following in zip(chosen, [*chosen[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                return 1
        sys.settrace(None)
        if "to" in request:
            Path(request["to"]).write_text(json.dumps([time.monotonic() - start, sorted(self.lines)]))
        return 0


def imported(request: dict[str, Any]) -> int:
    """In a fork of a bare worker: import the changed module, and run the tests."""
    sys.meta_path.insert(0, Replaced(request["module"], request["source"]))
    importlib.import_module(module_name(request["module"]))
    code = int(pytest.main(["-x", *OPTIONS, *IMPORTED, *request["tests"]]))
    if code == NO_SUCH_TEST:  # a parameter has another name now: run the files
        files = dict.fromkeys(test.partition("::")[0] for test in request["tests"])
        code = int(pytest.main(["-x", *OPTIONS, *IMPORTED, *files]))
    return code


def serve(hello: object, answer: Callable[[dict[str, Any]], int]) -> None:
    """Answer each request with the exit code of its fork, -1 for one that took too long or was killed."""
    print(json.dumps(hello), file=REPLIES, flush=True)
    for line in REQUESTS:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            in_fork(request, answer)
        deadline = time.monotonic() + request["seconds"]
        ended, status, pause = 0, 0, 0.001
        while not ended and time.monotonic() < deadline:
            ended, status = os.waitpid(pid, os.WNOHANG)
            time.sleep(0 if ended else pause)
            pause = min(2 * pause, 0.05)
        if not ended:
            os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
        print(json.dumps(max(-1, os.waitstatus_to_exitcode(status))), file=REPLIES, flush=True)


def in_fork(request: dict[str, Any], answer: Callable[[dict[str, Any]], int]) -> None:
    """Answer a request, and end; what the tests print goes to a file."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = answer(request)
    except BaseException:  # noqa: BLE001 (a fork must not go on in the loop)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    REQUESTS, REPLIES = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile("mutants", deadline=None, database=None, derandomize=True, phases=phases)
    if sys.argv[1] == "--bare":
        serve({}, imported)
    else:
        modules, _, files = " ".join(sys.argv[1:]).partition(" -- ")
        pytest.main(["-s", *OPTIONS, *IMPORTED, *files.split()], plugins=[Serving(modules.split())])
