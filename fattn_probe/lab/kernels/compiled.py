"""fattn-probe's and the user's kernels in CUDA C++, compiled for a target with a generated driver."""

import re
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fattn_probe.base.console import NOTES
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import scratch
from fattn_probe.cases.device import Target
from fattn_probe.cases.op import Op, TensorView
from fattn_probe.cases.op.op import element_offset, element_strides
from fattn_probe.lab.kernels.contender import How, Outcome, Output, Question, refusal
from fattn_probe.lab.program.build import Executable, Program, maker, written
from fattn_probe.lab.program.execute import ProgramSettings, execute
from fattn_probe.llama.build.ninja import Report, silent
from fattn_probe.machine.run.outcome import Lost, Unsupported, lost_message
from fattn_probe.verdict.truth.error_model.kernel import Kernel, Split
from fattn_probe.verdict.truth.error_model.rounding import SINGLE

OPERANDS = ("Q", "K", "V", "mask")
RAN = 0
RUNNING = (3, 4, 5, 6, 7)
"""The axes of `Block`'s arrays along which sums share a running maximum: all axes within a step."""
CUDA = Path(__file__).parent / "cuda"
TYPES = {"f16": "__half", "bf16": "__nv_bfloat16"}
CONTRACT = (
    "launches the kernel: it takes a `const attention<KV> &` and returns a `const char *` (`fattn-probe kernel new`)"
)
PRINTED_LINES = 50
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def write_question(question: Question, path: Path) -> None:
    """Write an op: sizes, scale, the positions of its tensors, and the bytes of its memory."""
    op = question.op
    s = op.sizes
    roots = list(dict.fromkeys(op.operands[name].root for name in OPERANDS if name in op.operands))
    sizes = (s.n_seq, s.n_head, s.n_head_kv, s.n_q, s.n_kv, s.hsk, s.hsv, question.causal)
    places = [value for name in OPERANDS for value in place_of(op.operands.get(name), roots)]
    memories = [question.inputs[root] for root in roots]
    with path.open("wb") as file:
        file.write(struct.pack(f"<8qd{len(places)}q", *sizes, op.params.stored.scale, *places))
        file.write(struct.pack(f"<q{len(memories)}q", len(memories), *(memory.nbytes for memory in memories)))
        for memory in memories:
            memory.tofile(file)


def place_of(view: TensorView | None, roots: list[str]) -> tuple[int, ...]:
    """The position of a tensor: memory, first element, and the strides of rows, heads and sequences in elements.

    A dimension of size 1 has a stride of 0, so that a mask applies to all heads or sequences.
    """
    if view is None:
        return (-1, 0, 0, 0, 0)
    strides = [stride if size > 1 else 0 for size, stride in zip(view.ne[1:], element_strides(view)[1:], strict=True)]
    return (roots.index(view.root), element_offset(view), *strides)


@dataclass(frozen=True)
class CompiledContender:
    """A function in a file that launches an attention kernel, as described in `attention.h`.

    `keys` is the number of KV rows per step, for the error model; 0 if the arithmetic is not known.
    """

    name: str
    file: Path
    function: str
    algorithm: str = ""
    keys: int = 0
    report: Report = field(default=silent, compare=False)

    def arithmetic(self, op: Op) -> Kernel | None:
        """The shipped kernels' arithmetic: f32 sums over `keys` KV rows per step, one by one, with multiply-adds."""
        if not self.keys:
            return None
        s = op.sizes
        return Kernel(
            name=self.name,
            geometry=None,
            split=Split(1, self.keys, 1, 1, 1),
            accumulator=SINGLE,
            weights=SINGLE,
            q="f32",
            converts_K=False,
            converts_V=False,
            chain=(s.hsk / 3, s.hsk / 6),
            shares_maximum=RUNNING,
            sparse=False,
        )

    def run(self, question: Question, target: Target, how: How) -> Outcome:
        """Compile for the target and the types of K and V, and compute a case."""
        reason = self.refusal(question.op, target)
        if reason:
            return Unsupported(reason)
        made = replace(self.executable(question.op.type_K, target, how), source=self.file)
        with scratch() as folder:
            asked, answered = folder / "op", folder / "output"
            write_question(question, asked)
            words = (str(asked), str(answered), *map(str, how.timing_on(target)))
            run = execute(made, target, ProgramSettings(words, how.timeout, keeps_output=True), how.simulation)
            fault = run.finding or (run.refused[-1] if run.code and run.refused else None)
            if fault is not None:
                file = self.file.resolve()
                own = [place for place, frame in enumerate(fault.frames) if f" at {file}:" in frame]
                return replace(fault, frames=fault.frames[: own[-1] + 1]) if own and fault.block is None else fault
            if run.stdout:
                NOTES.print(f"{self.name} on {target} prints:\n{beginning(run.stdout)}", soft_wrap=True)
            if run.code or not answered.is_file():
                return Lost(lost_message("the kernel's program", run.code, run.stderr))
            data = answered.read_bytes()
        # The file says whether the op was computed, then has the output and the seconds of each timed run, or a reason.
        if struct.unpack_from("<q", data) != (RAN,):
            return Unsupported(data[8:].decode(errors="replace"))
        shape = question.op.sizes.dst
        end = 8 + 4 * int(np.prod(shape))
        if len(data) < end or (len(data) - end) % 8:
            raise InputError(f"{answered}: the kernel's output has {len(data)} bytes instead of {end}")
        dst = np.frombuffer(data[8:end], np.float32).reshape(shape)
        return Output(dst, run.launches, tuple(np.frombuffer(data[end:], np.float64).tolist()))

    def refusal(self, op: Op, target: Target) -> str:
        """The reason why the kernel cannot compute an op on a target; empty if it can."""
        if target.engine == "cpu":
            return "it needs a GPU, simulated or real"
        if op.type_K != op.type_V or op.type_K not in TYPES:
            return f"K is {op.type_K} and V {op.type_V}: both must be f16, or both bf16"
        if op.has_mask and any(
            mask not in (1, size)
            for mask, size in zip(op.tensors["mask"].ne[2:], (op.sizes.n_head, op.sizes.n_seq), strict=True)
        ):
            return "a mask that repeats over heads or sequences"
        return refusal(op)

    def executable(self, kv: str, target: Target, how: How) -> Executable:
        """The compiled driver; BuildError with the compiler's errors if it does not compile."""
        made = maker(target, "check" if how.check else "release")
        text = driver(self.file.name, self.function, TYPES[kv], hip=made.amd)
        path = written(text, self.function, ".hip" if made.amd else ".cu")
        return made.make(Program(path, (self.file.resolve().parent, CUDA)), self.report)


def beginning(text: str) -> str:
    """The first lines of a kernel's output, and the number of lines if some are left out."""
    lines = text.splitlines()
    more = [f"... ({len(lines)} lines)"] if len(lines) > PRINTED_LINES else []
    return "\n".join([*lines[:PRINTED_LINES], *more])


def driver(file: str, function: str, kv: str, *, hip: bool) -> str:
    """The source of a program that runs a kernel. If the file has a main(), it is renamed."""
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


def own(words: str, report: Report = silent) -> CompiledContender:
    """The kernel that `FILE:NAME` names; InputError if the file has no function with this name."""
    file, _, function = words.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise InputError(f"--kernel {words}: there is no file {file}")
    if not function:
        raise InputError(f"--kernel {words}: name a function of {file} after the colon, the one that {CONTRACT}")
    if not IDENTIFIER.fullmatch(function):
        raise InputError(f"--kernel {words}: {function} is not the name of a function")
    text = path.read_text(errors="surrogateescape")
    if not re.search(rf"\b{function}\s*\(", text):
        raise InputError(f"--kernel {words}: {file} has no function {function}")
    if re.search(rf"\b__global__\b[^;{{}}]*\b{function}\s*\(", text):
        raise InputError(f"--kernel {words}: {function} is a __global__ function; name the one that {CONTRACT}")
    return CompiledContender(words, path, function, report=report)


def shipped(name: str, report: Report = silent) -> CompiledContender:
    """The naive or the tiled kernel."""
    return CompiledContender(name, CUDA / f"{name}.cuh", name, "fa2", {"naive": 1, "tiled": 16}[name], report)
