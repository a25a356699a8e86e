"""The contenders by their names for `--kernel`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fattn_probe.base.errors import ComparisonError, InputError, LostError
from fattn_probe.cases.device import Target
from fattn_probe.cases.device.catalogue import nearest
from fattn_probe.cases.op import Op
from fattn_probe.lab.kernels import tilelang_attention, torch_attention
from fattn_probe.lab.kernels.compiled import own, shipped
from fattn_probe.lab.kernels.contender import Contender, How, Outcome, Output, Question, refusal
from fattn_probe.lab.kernels.extras import Arrays, Attended
from fattn_probe.llama.build.ninja import Report, silent
from fattn_probe.machine.run.outcome import Failed, Lost, Unsupported
from fattn_probe.verdict.truth.error_model.kernel import Kernel
from fattn_probe.verdict.truth.reference.adapter import operand_values

TORCH = "torch:"


Attend = Callable[[Arrays, Target, How], Attended]
"""A function that computes an op on a target."""


@dataclass(frozen=True)
class Package:
    """A kernel that accepts arrays; `off_gpu` says where it runs without a real GPU, if not on a simulated one."""

    name: str
    attend: Attend
    off_gpu: str = ""
    algorithm: str = "fa2"

    def arithmetic(self, op: Op) -> Kernel | None:
        """None: the arithmetic is unknown."""
        return None

    def run(self, question: Question, target: Target, how: How) -> Outcome:
        """Compute a case, in f16."""
        reason = refused(question.op)
        if reason:
            return Unsupported(reason)
        try:
            made = self.attend(arrays_of(question), target, how)
        except InputError as error:
            return Unsupported(str(error))
        except ComparisonError as error:
            return Failed(str(error), ())
        except LostError as error:
            return Lost(str(error))
        return Output(np.ascontiguousarray(made.o.transpose(0, 2, 1, 3), np.float32), seconds=made.seconds)


def refused(op: Op) -> str:
    """The reason why an op cannot be given as arrays in f16; empty if it can."""
    if {op.type_K, op.type_V} != {"f16"}:
        return f"K is {op.type_K} and V {op.type_V}: both must be f16"
    if op.has_mask and op.tensors["mask"].ne[2:] != (1, 1):
        return "a mask for each sequence"
    return refusal(op)


def arrays_of(question: Question) -> Arrays:
    """The operands of a question; Q is rounded to f16."""
    values = operand_values(question.op, question.inputs)
    q, k, v = (np.ascontiguousarray(values[name], np.float16) for name in "QKV")
    mask = None if question.causal or not question.op.has_mask else np.asarray(values["mask"])[0, 0]
    return Arrays(q, k, v, question.op.params.stored.scale, question.causal, mask)


PACKAGES = {
    one.name: one
    for one in (
        Package("triton", torch_attention.attend_in_triton, "in Triton's interpreter, without a GPU"),
        Package("tilelang", tilelang_attention.attend),
        Package("tilelang:jit", tilelang_attention.attend_by_runtime),
        *(
            Package(
                f"{TORCH}{name}",
                partial(torch_attention.attend, name),
                "on this computer's CPU, without a GPU",
                "standard" if name == "math" else "fa2",
            )
            for name in torch_attention.BACKENDS
        ),
    )
}
"""The contenders by their names for `--kernel`."""


LLAMA = "llama"


KNOWN = (
    (LLAMA, "llama.cpp's own kernels, as everywhere else", "sim, gpu, cpu"),
    ("naive", "one thread per query row; K and V from global memory; f32", "sim (AMD too), gpu"),
    ("tiled", "K and V in tiles of shared memory, online softmax; f32", "sim (AMD too), gpu"),
    ("triton", "FlashAttention-2 in Triton; extra `triton`", "gpu, else Triton's interpreter"),
    ("tilelang", "FlashAttention-2 in TileLang, on fragments; extra `tilelang`", "sim and gpu, Ampere and newer"),
    ("tilelang:jit", "the same kernel with TileLang's own runtime, for this machine's GPU", "gpu, Ampere and newer"),
    ("torch", "PyTorch's backends, or one of them: torch:flash; extra `torch`", "gpu, else cpu"),
)
"""The contenders that come with fattn-probe: a name, a description, and where it runs."""
NAMES = tuple(name for name, _, _ in KNOWN)


def contenders_of(words: Sequence[str], report: Report = silent) -> list[Contender | None]:
    """The contenders that `--kernel` names; None for llama.cpp's kernels. InputError for an unknown or missing name."""
    if not words:
        raise InputError(f"--kernel: no name is given; kernels: {', '.join(NAMES)}")
    found: list[Contender | None] = []
    for word in words:
        if word != "torch":
            found.append(None if word == LLAMA else contender_of(word, report))
            continue
        try:
            backends = torch_attention.backends()
        except InputError:  # without PyTorch, one contender reports this
            backends = ("math",)
        found += [PACKAGES[f"{TORCH}{name}"] for name in backends]
    return found


def contender_of(word: str, report: Report) -> Contender:
    """The contender with a given name."""
    if word in ("naive", "tiled"):
        return shipped(word, report)
    if word in PACKAGES:
        return PACKAGES[word]
    before, colon, _ = word.partition(":")
    if colon and before in NAMES and not Path(before).is_file():
        variants = [name for name in PACKAGES if name.startswith(f"{before}:")]
        has = f"{before} has {', '.join(variants)}" if variants else f"{before} has no variants"
        raise InputError(f"--kernel {word}: no such kernel; {has}")
    if colon:
        return own(word, report)
    hint = nearest(word, NAMES)
    raise InputError(f"--kernel {word}: no such kernel{hint}; kernels: {', '.join(NAMES)}, or FILE.cu:NAME")
