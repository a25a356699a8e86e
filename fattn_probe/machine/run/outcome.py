"""The outcome of a run, from the runner's result file, or from its exit code and stderr."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.base.errors import InputError
from fattn_probe.base.host import check_program
from fattn_probe.base.process import Completed, describe_code
from fattn_probe.cases.op.gguf_file import GgufFile, read_gguf
from fattn_probe.llama.launch.record import LaunchRecord


@dataclass(frozen=True, eq=False)
class RunResult:
    """The contents of a result file.

    `dst` is float32 (n_seq, n_q, n_head, hsv), dst's `ne` reversed; None if nothing ran. `seconds` has one time for
    each repeat, measured by `clock`: `gpu` (events around the kernels) or `wall` (around ggml_backend_graph_compute).
    """

    backend: str
    device: str
    digest: str
    unsupported: str
    clock: str
    seconds: tuple[float, ...]
    dst: npt.NDArray[np.float32] | None


def read_result(path: Path) -> RunResult:
    """Read the runner's result file."""
    file = read_gguf(path)
    return RunResult(
        backend=file.one("fattn.run.backend", str),
        device=file.one("fattn.run.device", str),
        digest=file.one("fattn.run.digest", str),
        unsupported="" if file.one("fattn.run.status", str) == "ok" else file.one("fattn.run.reason", str),
        clock=file.one("fattn.run.clock", str) if "fattn.run.clock" in file.fields else "",
        seconds=file.several("fattn.run.seconds", float),
        dst=read_dst(file) if "dst" in file.tensors else None,
    )


def read_dst(file: GgufFile) -> npt.NDArray[np.float32]:
    """The op's output, mapped from the file: float32 (n_seq, n_q, n_head, hsv)."""
    if "dst" not in file.tensors:
        raise InputError(
            f"{file.path}: there is no tensor dst, the output of a run; `compare --on TARGETS` runs the case"
        )
    tensor = file.tensors["dst"]
    if tensor.type != "f32":
        raise InputError(f"{file.path}: dst is {tensor.type}, but the op writes f32")
    return tensor.data.view(np.float32).reshape(tensor.ne[::-1])


FAULT_CODE, MISSING_CODE, LINKER_CODE, SIGABRT = 86, 87, 127, -6
FINDING = "fattn-probe: finding: "
FRAME = "fattn-runner: frame "
UNKNOWN_INSTRUCTION = "unknown-instruction"
REFUSED = "fattn-probe: refused: "
DEVICE_ERROR = re.compile(r"\b(CUDA|ROCm) error: ")
GRAPH_FAILED = "fattn-runner: ggml_backend_graph_compute: "
MISSING = re.compile(r"fattn-probe: missing symbol: (?P<symbol>\S+)|undefined symbol: (?P<linker>[^\s,]+)")
ABORT = re.compile(r"^(?P<place>\S.*?:\d+): (?P<what>.+)$")
STACK = re.compile(r"^(#\d+ |\d+: 0x|\S*\(.*\) ?\[0x[0-9a-f]+\]$)")
ANSI = re.compile(r"\x1b\[[0-9;]*m")
ASAN = re.compile(r"^==\d+==\s*ERROR: (?P<kind>\w+Sanitizer): (?P<what>.+)$", re.MULTILINE)
UBSAN = re.compile(r"^(?P<file>\S+?):(?P<line>\d+)(?P<column>:\d+)?: runtime error: (?P<what>.+)$", re.MULTILINE)
PLACE = re.compile(r" (?P<file>/\S+?):(?P<line>\d+)(:\d+)?$")


@dataclass(frozen=True)
class Ran:
    """The op ran: its result, the launches of its first run, and ggml's warnings."""

    result: RunResult
    launches: tuple[LaunchRecord, ...]
    warnings: str
    wall_seconds: float


@dataclass(frozen=True)
class Unsupported:
    """The backend, in this version of llama.cpp, does not support the op."""

    reason: str


@dataclass(frozen=True)
class Missing:
    """The program called a function that the build lacks, or failed to load because of an undefined symbol."""

    symbol: str


Index = tuple[int, int, int]


@dataclass(frozen=True)
class Finding:
    """A fault that stopped a run, found by the simulator, a sanitizer or ggml.

    `kind` is the simulator's term (`out-of-bounds`, `race`, ...), the sanitizer's name, `CUDA error` or `abort`.
    `kernel` is the signature as the compiler writes it, or a short name after `shortened`; `block` and `thread` are (x,
    y, z). `frames` begin with the innermost frame, at `file` and `line`. `earlier` has the frames of the other access
    in a race between kernels, or of lanes that are at another instruction. Unknown values are empty, None or 0.
    """

    kind: str
    message: str
    kernel: str = ""
    file: str = ""
    line: int = 0
    block: Index | None = None
    thread: Index | None = None
    frames: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()

    @property
    def is_lost(self) -> bool:
        """Whether it says nothing about the kernel, because the simulator does not know one of its instructions."""
        return self.kind == UNKNOWN_INSTRUCTION

    @property
    def place(self) -> str:
        """`KERNEL, block (0, 0, 0), thread (23, 2, 0), FILE:LINE`, and the line of attention code that called it."""
        indices = (("block", self.block), ("thread", self.thread))
        known = [f"{name} ({', '.join(map(str, index))})" for name, index in indices if index is not None]
        source = [f"{self.file}:{self.line}"] if self.file else []
        lines = [frame.rpartition(" at ")[2] for frame in self.frames]
        attention = next((line for line in lines if line.rpartition("/")[2].startswith("fattn")), "")
        if source and attention and not self.file.rpartition("/")[2].startswith("fattn"):
            source.append(f"called at {attention}")
        return ", ".join([*([self.kernel] if self.kernel else []), *known, *source])


@dataclass(frozen=True)
class Failed:
    """ggml aborted: an assertion, an abort or a CUDA error, with its message and stack."""

    message: str
    stack: tuple[str, ...]


@dataclass(frozen=True)
class Lost:
    """No verdict: the run timed out, was killed or crashed for an unknown reason; `frames` is the stack if known."""

    message: str
    stack: tuple[str, ...] = ()


RunOutcome = Ran | Unsupported | Missing | Finding | Failed | Lost
Ending = Missing | Finding | Failed | Lost


def parse_ending(done: Completed) -> Ending | None:
    """The ending, from exit code and stderr, with frames not yet symbolised; None for success.

    MachineError if the runner ran out of memory because of a limit on the address space.
    """
    if done.code == 0:
        return None
    check_program(done.stderr)
    if done.code in (MISSING_CODE, LINKER_CODE) and (match := MISSING.search(done.stderr)):
        return Missing(match["symbol"] or match["linker"])  # printed by a stub, or by the dynamic linker
    # The frames that the runner prints when a signal kills it (native/runner/crash.h).
    crash = tuple(line.removeprefix(FRAME) for line in done.stderr.splitlines() if line.startswith(FRAME))
    lost = Lost(lost_message("the runner", done.code, done.stderr), crash)
    return checker_finding(done) or sanitizer_finding(done) or ggml_failure(done) or lost


def missing_kernels(stderr: str) -> list[str]:
    """The mangled names of the kernels that a program skipped, from its stderr."""
    return [match["symbol"] for match in MISSING.finditer(stderr) if match["symbol"]]


def checker_finding(done: Completed) -> Finding | None:
    """The simulator's finding (exit code 86), or None."""
    if done.code != FAULT_CODE:
        return None
    for line in done.stderr.splitlines():
        if line.startswith(FINDING):
            try:
                return parse_finding(json.loads(line.removeprefix(FINDING)))
            except json.JSONDecodeError:
                return None
    return None


def parse_finding(finding: Mapping[str, Any]) -> Finding:
    """Parse a finding that the simulator printed (`report` in native/sim/finding.cpp)."""
    kind = str(finding.get("kind", ""))
    message, kernel = str(finding.get("message", kind)), str(finding.get("kernel", ""))
    block, thread = (tuple(finding.get(name) or ()) or None for name in ("block", "thread"))
    frames, earlier = (tuple(finding.get(name, ())) for name in ("frames", "earlier"))
    return Finding(kind, message, kernel, block=block, thread=thread, frames=frames, earlier=earlier)


def sanitizer_finding(done: Completed) -> Finding | None:
    """The finding in a report of AddressSanitizer or UndefinedBehaviorSanitizer, or None."""
    if match := ASAN.search(done.stderr):
        frames = re.findall(r"^ +#\d+ 0x[0-9a-f]+ in (.+)$", done.stderr[match.end() :].split("\n\n")[0], re.MULTILINE)
        place = PLACE.search(frames[0]) if frames else None
        file, line = (place["file"], int(place["line"])) if place else ("", 0)
        return Finding(match["kind"], f"{match['kind']}: {match['what']}", frames=tuple(frames), file=file, line=line)
    if match := UBSAN.search(done.stderr):
        message = f"{match['file']}:{match['line']}{match['column'] or ''}: {match['what']}"
        return Finding("UndefinedBehaviorSanitizer", message, file=match["file"], line=int(match["line"]))
    return None


def ggml_failure(done: Completed) -> Failed | None:
    """An abort of ggml (`file:line: GGML_ASSERT(...) failed`, a CUDA error) or a failed graph; otherwise None."""
    lines = done.stderr.splitlines()
    if done.code == SIGABRT:
        cuda = cuda_error(lines)
        aborts = [line for line in lines if ABORT.match(line)]
        if cuda or aborts:
            # The callers of ggml_abort, printed by the gdb that ggml starts (stdout) or by backtrace_symbols (stderr).
            text = ANSI.sub("", f"{done.stdout}\n{done.stderr}")
            frames = [line for line in text.splitlines() if STACK.match(line)]
            last = max((i for i, frame in enumerate(frames) if "ggml_abort" in frame), default=-1)
            return Failed("\n".join(cuda + aborts[-1:]), tuple(frames[last + 1 :]))
    failed = [line.removeprefix("fattn-runner: ") for line in lines if line.startswith(GRAPH_FAILED)]
    return Failed("\n".join(cuda_error(lines) + failed), ()) if failed else None


def cuda_error(lines: list[str]) -> list[str]:
    """ggml's message for a CUDA or ROCm error, its location and the failed call; and why the simulator refuses it."""
    refused = [line.removeprefix(REFUSED) for line in lines if line.startswith(REFUSED)][-1:]
    for i, line in enumerate(lines):
        if DEVICE_ERROR.search(line):
            return [line.strip(), *(more.strip() for more in lines[i + 1 : i + 3] if more.startswith("  ")), *refused]
    return []


def lost_message(program: str, code: int, stderr: str) -> str:
    """A message with a program's exit code and its last lines of stderr; MachineError as in `parse_ending`."""
    check_program(stderr)
    said = [line for line in stderr.splitlines() if line.strip() and not line.startswith(FRAME)][-10:]
    ended = f"ended with {describe_code(code)}" if code >= 0 else f"was {describe_code(code)}"
    return "\n".join([f"{program} {ended}", *said])
