"""Run all selected cases of `test-backend-ops` on a target, under pexpect, with live results and timeouts.

The program is restarted after a case that crashes it, or that needs a function missing from the build.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pexpect

from fattn_probe.base.errors import BuildError, InputError, LostError
from fattn_probe.base.process import describe_code
from fattn_probe.cases.device import Target
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.cases import resolve
from fattn_probe.cases.scenario.from_ops import from_ops
from fattn_probe.daily.ops.parse import (
    OP,
    Mode,
    OpResult,
    OpsOptions,
    OpsReport,
    OpsSummary,
    Status,
    Transcript,
    ask_options,
    first_without_result,
    plan_ops,
)
from fattn_probe.llama.build import TEST_BACKEND_OPS
from fattn_probe.machine.run.prepare import prepare
from fattn_probe.machine.run.session import Session

MISSING_EXIT = 87
OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
OnResult = Callable[[OpResult, int], None]


@dataclass(frozen=True)
class Timeouts:
    """Timeouts in seconds: `silence` between two lines of output (a limit for each case), `overall` for the program."""

    silence: float = 600.0
    overall: float = 7200.0


@dataclass(frozen=True)
class Ending:
    """How the program ended: its exit code (negative: a signal), or the timeout that stopped it.

    `timed_out`: the overall timeout stopped it.
    """

    code: int = 0
    timeout: str = ""
    timed_out: bool = False


def drive(
    argv: Sequence[str], env: Mapping[str, str], timeouts: Timeouts, on_result: OnResult, expected: Sequence[str] = ()
) -> OpsReport:
    """Run one command and parse its results as they appear; `env` is added to this process's environment.

    If the program ends early, the case in progress also gets a result: `fail` if the program stopped itself (an abort
    of ggml, a CUDA error, the checker), `lost` if it was killed or timed out.
    """
    start = time.monotonic()
    transcript = Transcript(report := OpsReport(tuple(argv)))
    child: pexpect.spawn[str]
    try:
        child = pexpect.spawn(
            argv[0],
            list(argv[1:]),
            env={**os.environ, "TERM": "dumb", **env},
            encoding="utf-8",
            codec_errors="replace",
            echo=False,
            maxread=65536,
        )
    except pexpect.ExceptionPexpect as error:
        raise BuildError(f"{argv[0]} could not be run: {str(error).splitlines()[0]}") from error
    try:
        ending = _read(child, transcript, timeouts, lambda result: on_result(result, len(expected)))
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if child.pid is not None and child.isalive():
                os.killpg(child.pid, signal.SIGKILL)
        child.close(force=True)
    report.seconds = time.monotonic() - start
    # the program's last message: from the checker, ggml or CUDA, or its last line of output
    said = transcript.fatal or (report.tail or ["no output"])[-1].strip()
    if finding := report.finding:
        said = f"{finding.get('kind', 'fault')}: {finding.get('message', '')}"
    if ending.code == MISSING_EXIT and report.missing:
        return replace(report, stopped=f"the build lacks a function that was called: {report.missing}")
    ended = ending.code == 0 or (ending.code == 1 and report.summary is not None)
    if ended and not ending.timeout:
        return replace(report, tail=())
    stopped = ending.timeout or describe_code(ending.code)
    from_outside = bool(ending.timeout) or ending.code in OUTSIDE
    reached_backend = bool(report.description or report.results)
    case = first_without_result(expected, report.results)
    if not case:
        case = f"the case after {report.results[-1].case}" if report.results else "before the first case"
    status: Status = "fail" if reached_backend and not from_outside else "lost"
    in_flight = OpResult(case, status, stopped if from_outside else said)
    return replace(report, results=(*report.results, in_flight), stopped=stopped, timed_out=ending.timed_out)


def _read(
    child: "pexpect.spawn[str]", transcript: Transcript, timeouts: Timeouts, on_result: Callable[[OpResult], None]
) -> Ending:
    deadline = time.monotonic() + timeouts.overall
    child.delayafterread = None
    while True:
        left = deadline - time.monotonic()
        wait = min(timeouts.silence, left)
        which = child.expect_exact(["\r\n", pexpect.EOF, pexpect.TIMEOUT], timeout=max(wait, 0.0))
        if which == 2:
            if timeouts.silence <= left:
                return Ending(timeout=f"no output for {wait:.0f} s")
            return Ending(timeout=f"timed out after {timeouts.overall:.0f} s", timed_out=True)
        if result := transcript.feed(child.before or ""):
            on_result(result)
        if which == 1:
            child.close()
            return Ending(-child.signalstatus if child.signalstatus else child.exitstatus or 0)


MOST_CHARACTERS = 100_000  # per argument: Linux allows 128 KiB
Only = str | Sequence[str] | None
Complete = Callable[[str], Path]
Prepare = Callable[[Sequence[str]], Path]


def run_ops(
    program: Path,
    mode: Mode,
    backend: str,
    *,
    only: Only = None,
    env: Mapping[str, str],
    timeouts: Timeouts,
    on_result: OnResult,
    workers: int = 1,
    complete: Complete | None = None,
    prepare: Prepare | None = None,
) -> OpsReport:
    """Run one mode of a tree's `test-backend-ops` on the FLASH_ATTN_EXT cases that `only` selects.

    Test mode prints a case only when it has finished, so a `support` run lists the cases first. The list gives their
    number and, after a crash, the case that was in progress; a restarted program runs the remaining cases. `complete`
    receives the symbol of a function missing from the build and returns a program that has it; without `complete`, such
    a run stops. `prepare` receives the supported cases before the first case runs, and returns the program. `on_result`
    receives each result with the number of cases (0 if unknown).
    """
    environment = dict(env)
    options = ask_options(program, environment)
    if mode != "test":
        plan = plan_ops(options, mode, backend, only, workers=workers)
        return _some(drive((str(program), *plan), environment, timeouts, on_result), backend, only)
    listed = drive(
        (str(program), *plan_ops(options, "support", backend, only)), environment, timeouts, lambda result, total: None
    )
    if listed.stopped:
        return listed
    expected = tuple(result.case for result in _some(listed, backend, only).results)
    if prepare is not None:
        program = prepare([result.case for result in listed.results if result.status == "ok"])
    rounds = Rounds(program, options, backend, environment, timeouts, on_result, expected, workers, complete)
    return _some(rounds.run(only), backend, only)


def _some(report: OpsReport, backend: str, only: Only) -> OpsReport:
    """Return the report; raises an error if no case ran, which upstream reports as success."""
    if report.results or report.stopped:
        return report
    if backend not in report.backends:
        has = ", ".join(report.backends) or "none"
        raise LostError(f"{report.command[0]} has no backend {backend} (it has: {has})")
    raise InputError(f"--filter {only!r} selects no {OP} case in this source")


def portions(cases: Sequence[str], most: int = MOST_CHARACTERS) -> Iterator[tuple[str, ...]]:
    """Split cases into groups, each short enough for one command-line argument."""
    group: list[str] = []
    for case in cases:
        if group and sum(len(name) + 1 for name in group) + len(case) > most:
            yield tuple(group)
            group = []
        group.append(case)
    if group:
        yield tuple(group)


@dataclass
class Rounds:
    """The runs of the program that together give every expected case a result."""

    program: Path
    options: OpsOptions
    backend: str
    env: dict[str, str]
    timeouts: Timeouts
    on_result: OnResult
    expected: tuple[str, ...]
    workers: int = 1
    complete: Complete | None = None
    results: list[OpResult] = field(default_factory=list)
    reports: list[OpsReport] = field(default_factory=list)
    completed: set[str] = field(default_factory=set)

    def run(self, only: Only) -> OpsReport:
        """Run rounds until all cases have a result, or until a round makes no progress."""
        deadline = time.monotonic() + self.timeouts.overall
        workers = self.workers
        while True:
            cases = self.left()
            report = self._round(next(portions(cases)) if self.reports else only, cases, workers, deadline)
            if report.stopped and not self._helped(report, workers):
                return self._merged(report.stopped)
            if not self.left():
                return self._merged("")
            # With several workers it is unknown which case killed the program; a run with a single worker shows which.
            alone = report.stopped and not report.missing and workers > 1
            workers = 1 if alone else self.workers

    def left(self) -> list[str]:
        """The expected cases without a result, each once."""
        done = {result.case for result in self.results}
        return [case for case in dict.fromkeys(self.expected) if case not in done]

    def _round(self, only: Only, cases: Sequence[str], workers: int, deadline: float) -> OpsReport:
        plan = plan_ops(self.options, "test", self.backend, only, workers=workers)
        limits = replace(self.timeouts, overall=max(deadline - time.monotonic(), 0.0))
        expected = self.expected if not self.reports else cases
        report = drive(
            (str(self.program), *plan),
            self.env,
            limits,
            lambda result, _: self.on_result(result, len(self.expected)),
            expected,
        )
        guessed = report.stopped and not report.missing and workers > 1
        self.results += report.results[:-1] if guessed else report.results
        self.reports.append(report)
        return report

    def _helped(self, report: OpsReport, workers: int) -> bool:
        """Whether another round can make progress: the missing function or the crashed case's result was added."""
        if report.missing:
            if self.complete is None or report.missing in self.completed:
                return False
            self.completed.add(report.missing)
            self.program = self.complete(report.missing)
            return True
        if report.timed_out or not report.results:
            return False
        return workers > 1 or report.results[-1].case in self.expected

    def _merged(self, stopped: str) -> OpsReport:
        last = self.reports[-1]
        crashed = [report for report in self.reports if report.stopped and not report.missing]
        if len(self.reports) == 1 and (stopped or not crashed):
            return last
        counted = [result.status for result in self.results if result.status != "not-supported"]
        witness = crashed[-1] if crashed else last
        return replace(
            last,
            results=tuple(self.results),
            summary=OpsSummary(counted.count("ok"), len(counted)),
            seconds=sum(report.seconds for report in self.reports),
            stopped=stopped,
            missing=last.missing if stopped else None,
            finding=witness.finding,
            tail=witness.tail,
            crashes=tuple(report.stopped for report in crashed),
        )


LIST = Path("tests/test-backend-ops.cpp")
V_IS_K = re.compile(r"\bv\s*=\s*ggml_view_4d\(ctx, k,")


def cases_of(lines: Iterable[str], root: Path) -> Iterator[Case]:
    """Parse `FLASH_ATTN_EXT(...)` lines of the tree in `root`; skips cases that no scenario can express."""
    separate_V = separate_V_of(root)
    for line in lines:
        with contextlib.suppress(InputError):
            yield resolve(from_ops(line, separate_V=separate_V), line, "upstream")


def separate_V_of(root: Path) -> bool:
    """Whether V is separate from K in every case that a source lists; the text of an old case does not show this."""
    path = root / LIST
    return path.is_file() and not V_IS_K.search(path.read_text(errors="replace"))


def run_ops_on(
    session: Session,
    target: Target,
    mode: Mode,
    *,
    only: Only = None,
    timeouts: Timeouts,
    on_result: OnResult,
    workers: int = 1,
) -> OpsReport:
    """`run_ops` with the session's build for the target."""
    return run_ops(
        session.build_for(target, TEST_BACKEND_OPS).test_backend_ops,
        mode,
        target.backend,
        only=only,
        env=session.env(target, TEST_BACKEND_OPS),
        timeouts=timeouts,
        on_result=on_result,
        workers=workers,
        complete=lambda symbol: session.complete(target, symbol, TEST_BACKEND_OPS).test_backend_ops,
        prepare=lambda lines: prepared(session, target, lines),
    )


def prepared(session: Session, target: Target, lines: Sequence[str]) -> Path:
    """The program, built with the kernels that these upstream cases need, if the kernels are known."""
    if session.options.tree is not None:
        cases = cases_of(lines, session.options.tree.root)
        prepare(session, [(case, [target]) for case in cases], TEST_BACKEND_OPS)
    return session.build_for(target, TEST_BACKEND_OPS).test_backend_ops
