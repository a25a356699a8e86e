"""Run `test-backend-ops` under pexpect, with live results and timeouts."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pexpect

from fattn_probe.base.errors import BuildError
from fattn_probe.base.process import describe_code
from fattn_probe.daily.ops.parse import OpResult, OpsReport, Status, Transcript, first_without_result

MISSING_EXIT = 87
OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
OnResult = Callable[[OpResult, int], None]


@dataclass(frozen=True)
class Timeouts:
    """Timeouts in seconds: `silence` between two lines of output (limits a case), `overall` for the whole program."""

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
    argv: Sequence[str],
    env: Mapping[str, str],
    timeouts: Timeouts,
    on_result: OnResult,
    expected: Sequence[str] = (),
) -> OpsReport:
    """Run one command and parse its results as they appear; `env` is added to this process's environment.

    If the program ends early, the case in progress gets a result too: `fail` if the program stopped itself (an abort
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
    # the program's last message: the checker's, that of ggml or CUDA, or its last line
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
