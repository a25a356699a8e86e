"""Parse the usage text and the console output (line by line) of any version of `test-backend-ops`."""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fattn_probe.base.errors import BuildError, ComparisonError, FattnProbeError, InputError, LostError, TimedOutError
from fattn_probe.base.process import run
from fattn_probe.base.regex import compiled
from fattn_probe.machine.run.outcome import Missing

Status = Literal["ok", "fail", "not-supported", "lost"]


@dataclass(frozen=True)
class OpResult:
    """One case: upstream's text for it, and its status.

    `error` and `threshold` are upstream's NMSE and bound, which it prints only for a failure. Perf mode sets `runs`,
    `us_per_run` and `gflops` (1e9 operations a second), or `gb_per_s` for an op whose operations are not counted.
    """

    case: str
    status: Status
    message: str = ""
    error: float | None = None
    threshold: float | None = None
    runs: int | None = None
    us_per_run: float | None = None
    gflops: float | None = None
    gb_per_s: float | None = None


@dataclass(frozen=True)
class OpsSummary:
    """`N/M tests passed`."""

    passed: int
    total: int


@dataclass(frozen=True)
class Backend:
    """A line about a backend: `Backend 1/2: CUDA0`, its description, or its result, `Backend CUDA0: OK`."""

    name: str
    description: str = ""
    ok: bool | None = None


Event = OpResult | OpsSummary | Backend | Missing | dict[str, Any]
"""The parsed line; a dictionary is a finding of the simulator's checker, which stops the program (exit code 86)."""

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
FATAL = re.compile(r"GGML_ASSERT|GGML_ABORT|(CUDA|ROCm) error|fatal error|ERROR: AddressSanitizer|runtime error")
TAIL = 40
"""Number of lines to keep from the end of the output."""
SCALE = {"T": 1e3, "G": 1.0, "M": 1e-3, "k": 1e-6}
ERROR = re.compile(r"\b(?:NMSE|ERR|MAA) = (\d+\.\d+) > (\d+\.\d+)")
CASE = re.compile(r"^(?P<before>.*?)  (?P<case>[A-Z][A-Z0-9_]*\([^()]*\)): *(?P<after>.*)")


def plain(line: str) -> str:
    """Strip a line's colour codes and line ending."""
    return ANSI.sub("", line).rstrip("\r\n")


def parse_line(line: str) -> Event | None:
    """Parse one line; None for a log line.

    The message of a failing case (`[FLASH_ATTN_EXT] ERR = ...`) has no newline, so the case's text is on the same line.
    """
    text = plain(line)
    for pattern, build in LINES:
        if match := pattern.search(text):
            return build(match)
    return None


def _case(match: re.Match[str]) -> OpResult | None:
    for pattern, build in ENDINGS:
        if ending := pattern.fullmatch(match["after"].rstrip()):
            result = build(OpResult(match["case"], "ok"), ending)
            return _with_message(result, f"{match['before'].strip()} {result.message}".strip())
    return None


def _with_message(result: OpResult, message: str) -> OpResult:
    bounds = list(ERROR.finditer(message))
    if not bounds:
        return replace(result, message=message)
    return replace(result, message=message, error=float(bounds[-1][1]), threshold=float(bounds[-1][2]))


def _perf(result: OpResult, ending: re.Match[str]) -> OpResult:
    timed = replace(result, runs=int(ending["runs"]), us_per_run=float(ending["us"]))
    if ending["flops"]:
        return replace(timed, gflops=float(ending["flops"]) * SCALE[ending["unit"]])
    return replace(timed, gb_per_s=float(ending["rate"]))


def _finding(match: re.Match[str]) -> dict[str, Any]:
    try:
        data = json.loads(match[1])
    except json.JSONDecodeError:
        data = None
    return data if isinstance(data, dict) else {"kind": "unreadable", "message": match[1]}


Ending = Callable[[OpResult, "re.Match[str]"], OpResult]
ENDINGS: tuple[tuple[re.Pattern[str], Ending], ...] = (
    (re.compile(r"(?P<message>.*?)\s*OK"), lambda result, end: replace(result, message=end["message"])),
    (
        re.compile(r"(?P<message>.*?)\s*FAIL"),
        lambda result, end: replace(result, status="fail", message=end["message"]),
    ),
    (re.compile(r"SUPPORTED"), lambda result, _: result),
    (
        re.compile(r"(?:NOT SUPPORTED|not supported|skipping large tensors for speed)(?: \[(?P<why>.*)\])?"),
        lambda result, end: replace(result, status="not-supported", message=end["why"] or ""),
    ),
    (
        re.compile(
            r"(?P<runs>\d+) runs - +(?P<us>\d+\.\d+) us/run - +"
            r"(?:\d+\.\d+ [TGMk]FLOP/run - +(?P<flops>\d+\.\d+) (?P<unit>[TGMk])FLOPS"
            r"|\d+ kB/run - +(?P<rate>\d+\.\d+) GB/s)"
        ),
        _perf,
    ),
)
LINES: tuple[tuple[re.Pattern[str], Callable[["re.Match[str]"], Event | None]], ...] = (
    (re.compile(r"fattn-probe: missing symbol: (\S+)"), lambda match: Missing(match[1])),
    (re.compile(r"fattn-probe: finding: (.*)"), _finding),
    (CASE, _case),
    (re.compile(r"^ *(\d+)/(\d+) tests passed"), lambda match: OpsSummary(int(match[1]), int(match[2]))),
    (re.compile(r"^Backend \d+/\d+: (\S+)"), lambda match: Backend(match[1])),
    (re.compile(r"^  Device description: (.*)"), lambda match: Backend("", match[1].strip())),
    (re.compile(r"^  Backend (\S+): (OK|FAIL)$"), lambda match: Backend(match[1], ok=match[2] == "OK")),
)


@dataclass
class OpsReport:
    """The results of a run in order of completion; `stopped` is the reason if the program ended early.

    `timed_out`: the overall timeout stopped the program. `backends` are all backends that the program lists;
    `description` belongs to the backend that ran. `crashes` has the reason for each crash; the program was then
    restarted. `missing` is the mangled name of a function that the build lacks, `finding` the report of the
    simulator's checker. `tail` has the last lines of output if the run stopped early.
    """

    command: tuple[str, ...]
    results: Sequence[OpResult] = ()
    summary: OpsSummary | None = None
    description: str = ""
    seconds: float = 0.0
    stopped: str = ""
    backends: Sequence[str] = ()
    missing: str | None = None
    finding: dict[str, Any] | None = None
    tail: Sequence[str] = ()
    crashes: tuple[str, ...] = ()
    timed_out: bool = False

    @property
    def counts(self) -> dict[str, int]:
        """The number of cases by status."""
        counted = Counter(result.status for result in self.results)
        return {status: counted[status] for status in ("ok", "fail", "not-supported", "lost")}

    @property
    def failures(self) -> tuple[OpResult, ...]:
        """The cases that failed or were lost."""
        return tuple(result for result in self.results if result.status in ("fail", "lost"))

    def problem(self) -> FattnProbeError | None:
        """The exception for this report, or None if all cases passed."""
        if self.missing:
            return BuildError(f"the build lacks {self.missing}")
        first = "".join(f"\n  {result.case}: {result.message or result.status}" for result in self.failures[:10])
        if any(result.status == "fail" for result in self.results):
            return ComparisonError(f"{self.counts['fail']} of {len(self.results)} cases failed{first}")
        if self.stopped or self.counts["lost"]:
            error = TimedOutError if self.timed_out else LostError
            return error(f"{self.stopped}{first}\n" + "\n".join(self.tail[-12:]))
        return None

    def as_dict(self) -> dict[str, Any]:
        """The data of `ops --json`."""
        return {**asdict(self), "counts": self.counts}


@dataclass
class Transcript:
    """The report of a run so far; with -j, a failure's message may appear on the line of another case.

    `fatal` is the first line since the last result that is a reason to stop; a long gdb backtrace may follow it.
    """

    report: OpsReport
    held: str = ""
    fatal: str = ""

    def feed(self, line: str) -> OpResult | None:
        """Process one line; return a case's result if the line completes it."""
        text, report = plain(line), self.report
        report.tail = [*report.tail[1 - TAIL :], text] if text else report.tail
        if not self.fatal and FATAL.search(text):
            self.fatal = text.strip()
        match parse_line(line):
            case OpResult() as result:
                if result.status == "ok" and result.message:
                    self.held, result = result.message, replace(result, message="", error=None, threshold=None)
                elif result.status == "fail" and not result.message and self.held:
                    self.held, result = "", _with_message(result, self.held)
                self.fatal = ""
                report.results = [*report.results, result]
                return result
            case OpsSummary() as summary:
                report.summary = summary
            case Backend(name=name, description=description, ok=None):
                report.backends = [*report.backends, *([name] if name else [])]
                report.description = description or report.description
            case Missing(symbol=symbol):
                report.missing = symbol
            case dict() as finding:
                report.finding = finding
        return None


def first_without_result(expected: Sequence[str], results: Sequence[OpResult]) -> str | None:
    """The first expected case without a result: with one worker, the case in progress."""
    seen = Counter(result.case for result in results)
    for case in expected:
        if not seen[case]:
            return case
        seen[case] -= 1
    return None


OP = "FLASH_ATTN_EXT"
HELP_SECONDS = 30.0
Mode = Literal["test", "perf", "support"]


@dataclass(frozen=True)
class OpsOptions:
    """The modes and options that a `test-backend-ops` program supports."""

    modes: frozenset[str]
    flags: frozenset[str]

    @property
    def workers(self) -> bool:
        """Whether cases can run in parallel (-j)."""
        return "-j" in self.flags


def probe_options(help_text: str) -> OpsOptions:
    """Parse a usage text; raises BuildError, which quotes the text, if it is not one."""
    if "Usage:" not in help_text or "-o <op" not in help_text:
        raise BuildError(f"not the usage text of test-backend-ops:\n{help_text.strip()[:400]}")
    modes = re.findall(r"^\s*(?:- )?(test|grad|perf|support)\b", help_text, re.MULTILINE)
    flags = re.findall(r"(?:^\s*|\[)(--?[a-z][a-z-]*)(?=[ \]\n])", help_text, re.MULTILINE)
    return OpsOptions(frozenset(modes), frozenset(flags))


def ask_options(program: Path, env: dict[str, str]) -> OpsOptions:
    """Run `program --help`; older versions reject --help, and print their usage with exit code 1."""
    done = run([program, "--help"], env=env, timeout=HELP_SECONDS, failure=None)
    return probe_options(done.stdout + done.stderr)


def plan_ops(
    options: OpsOptions, mode: Mode, backend: str, only: str | Sequence[str] | None = None, *, workers: int = 1
) -> tuple[str, ...]:
    """The arguments (without the program) that run FLASH_ATTN_EXT on one backend.

    `only` is one or several complete cases (`FLASH_ATTN_EXT(hsk=64,...)`), or a regular expression to search for in the
    parameters. Raises InputError for options that this version lacks, except `workers`: without -j, one worker runs.
    """
    if mode not in options.modes:
        raise InputError(f"mode {mode!r}: this test-backend-ops has only {', '.join(sorted(options.modes))}")
    pattern = only if isinstance(only, str) and not only.startswith(f"{OP}(") else ""
    cases = [only] if isinstance(only, str) and not pattern else [] if isinstance(only, str) else only or []
    words = [mode, "-b", backend, "-o", ",".join(case for case in cases if case) or OP]
    if pattern:
        if "-p" not in options.flags:
            raise InputError(f"--filter {pattern!r}: this source's test-backend-ops has no -p")
        words += ["-p", compiled(pattern, "--filter").pattern]
    if mode == "test" and options.workers and workers > 1:
        words += ["-j", str(workers)]
    return tuple(words)
