"""Kernels in CUDA C++, compiled for a target by a driver that is made for them: ours, and the user's own."""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from fattn_probe.build.ninja import Report, silent
from fattn_probe.console import NOTES
from fattn_probe.device import Target
from fattn_probe.errors import InputError
from fattn_probe.kernels.arithmetic import arithmetic_of
from fattn_probe.kernels.contender import How, Outcome, Output, Question, refusal
from fattn_probe.kernels.file import read_answer, write_question
from fattn_probe.op import Op
from fattn_probe.program.build import Executable, maker, written
from fattn_probe.program.execute import Settings, execute
from fattn_probe.program.source import Program
from fattn_probe.run.outcome import Fault, Lost, Unsupported, lost_message
from fattn_probe.scratch import scratch
from fattn_probe.truth.error_model.kernel import Kernel

CUDA = Path(__file__).parent / "cuda"
TYPES = {"f16": "__half", "bf16": "__nv_bfloat16"}
CONTRACT = (
    "launches the kernel: it takes a `const attention<KV> &` and returns a `const char *` (`fattn-probe kernel new`)"
)
PRINTED_LINES = 50
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Compiled:
    """A function of a file that launches an attention kernel, as `attention.h` says.

    `keys` is the number of KV rows of a step, for the error model; 0 if the arithmetic is not known.
    """

    name: str
    file: Path
    function: str
    algorithm: str = ""
    keys: int = 0
    report: Report = field(default=silent, compare=False)

    def arithmetic(self, op: Op) -> Kernel | None:
        """That of ours: sums in f32."""
        return arithmetic_of(op, self.name, self.keys) if self.keys else None

    def run(self, question: Question, target: Target, how: How) -> Outcome:
        """Compile for the target and the types of K and V, and compute a case."""
        reason = self.refusal(question.op, target)
        if reason:
            return Unsupported(reason)
        made = replace(self.executable(question.op.type_K, target, how), source=self.file)
        with scratch() as folder:
            asked, answered = folder / "op", folder / "output"
            write_question(question, asked)
            timing = how.timing_on(target)
            words = (str(asked), str(answered), str(timing.warmup), str(timing.repeats))
            run = execute(made, target, Settings(words, how.timeout, keeps_output=True), how.simulation)
            fault = run.fault or (run.refused[-1] if run.code and run.refused else None)
            if fault is not None:
                return without_driver(fault, self.file.resolve())
            if run.stdout:
                NOTES.print(f"{self.name} on {target} prints:\n{beginning(run.stdout)}", markup=False, soft_wrap=True)
            if run.code or not answered.is_file():
                return Lost(lost_message("the kernel's program", run.code, run.stderr))
            found = read_answer(answered, question)
            return found if isinstance(found, Unsupported) else Output(found[0], run.launches, found[1])

    def refusal(self, op: Op, target: Target) -> str:
        """Why it cannot compute an op on a target; empty if it can."""
        if target.engine == "cpu":
            return "it needs a GPU, simulated or real"
        if op.type_K != op.type_V or op.type_K not in TYPES:
            return f"K is {op.type_K} and V {op.type_V}: both must be f16, or both bf16"
        if op.has_mask and any(
            mask not in (1, size)
            for mask, size in zip(op.tensors["mask"].ne[2:], (op.sizes.n_head, op.sizes.n_seq), strict=True)
        ):
            return "a mask for some of the heads or sequences, which repeats"
        return refusal(op)

    def executable(self, kv: str, target: Target, how: How) -> Executable:
        """The compiled driver. BuildError with the compiler's errors."""
        made = maker(target, "check" if how.check else "release")
        text = driver(self.file.name, self.function, TYPES[kv], hip=made.amd)
        path = written(text, self.function, made, ".hip" if made.amd else ".cu")
        return made.make(Program(path, (self.file.resolve().parent, CUDA)), self.report)


def beginning(text: str) -> str:
    """The first lines of what a kernel has printed, and how many there are."""
    lines = text.splitlines()
    more = [f"... ({len(lines)} lines)"] if len(lines) > PRINTED_LINES else []
    return "\n".join([*lines[:PRINTED_LINES], *more])


def without_driver(fault: Fault, file: Path) -> Fault:
    """A fault at a launch with the frames out to the user's file, without those of the driver around it."""
    own = [place for place, frame in enumerate(fault.frames) if f" at {file}:" in frame]
    return replace(fault, frames=fault.frames[: own[-1] + 1]) if own and fault.block is None else fault


def driver(file: str, function: str, kv: str, *, hip: bool) -> str:
    """The source of a program that runs a kernel. A main() of the file's own gets another name."""
    return "\n".join(
        [
            f'#include "gpu_{"hip" if hip else "cuda"}.h"',
            '#include "drive.h"',
            "#define main main_of_the_kernel",
            f'#include "{file}"',
            "#undef main",
            "",
            "int main(int argc, char ** argv) {",
            f"    const auto kernel = [](const auto & op) -> decltype({function}(op)) {{ return {function}(op); }};",
            f"    return drive<{kv}>(kernel, argc, argv);",
            "}",
            "",
        ]
    )


def own(words: str, report: Report = silent) -> Compiled:
    """The kernel that `FILE:NAME` names; InputError if the file has no function of this name."""
    file, _, function = words.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise InputError(f"--kernel {words}: there is no file {file}")
    if not function:
        raise InputError(f"--kernel {words}: name a function of {file} behind the colon, the one that {CONTRACT}")
    if not IDENTIFIER.fullmatch(function):
        raise InputError(f"--kernel {words}: {function} is not the name of a function")
    text = path.read_text(errors="surrogateescape")
    if not re.search(rf"\b{function}\s*\(", text):
        raise InputError(f"--kernel {words}: {file} has no function {function}")
    if re.search(rf"\b__global__\b[^;{{}}]*\b{function}\s*\(", text):
        raise InputError(f"--kernel {words}: {function} is a __global__ function; name the one that {CONTRACT}")
    return Compiled(words, path, function, report=report)


def shipped(name: str, report: Report = silent) -> Compiled:
    """The naive or the tiled kernel."""
    keys = {"naive": 1, "tiled": 16}
    return Compiled(name, CUDA / f"{name}.cuh", name, "fa2", keys[name], report)
