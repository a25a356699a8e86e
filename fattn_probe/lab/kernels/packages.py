"""Kernels from the packages Triton, TileLang and PyTorch as contenders. They accept arrays in f16."""

from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from fattn_probe.base.errors import ComparisonError, InputError, LostError
from fattn_probe.cases.device import Target
from fattn_probe.cases.op import Op
from fattn_probe.lab.kernels import tilelang_attention, tilelang_runtime, torch_attention, triton_attention
from fattn_probe.lab.kernels.contender import How, Outcome, Output, Question, refusal
from fattn_probe.lab.kernels.extras import Arrays, Attended
from fattn_probe.machine.run.outcome import Failed, Lost, Unsupported
from fattn_probe.verdict.truth.error_model.kernel import Kernel
from fattn_probe.verdict.truth.reference.adapter import operand_values

TORCH = "torch:"


class Attend(Protocol):
    """A function that computes an op on a target."""

    def __call__(self, asked: Arrays, *, target: Target, how: How) -> Attended:
        """Its output, and the seconds of the timed runs on a GPU."""
        ...


@dataclass(frozen=True)
class Package:
    """A kernel that accepts arrays; `off_gpu` is where it runs instead of a simulated GPU, empty if it runs there."""

    name: str
    attend: Attend
    off_gpu: str = ""
    algorithm: str = "fa2"

    def arithmetic(self, op: Op) -> Kernel | None:
        """Not known."""
        return None

    def run(self, question: Question, target: Target, how: How) -> Outcome:
        """Compute a case, in f16."""
        reason = refused(question.op)
        if reason:
            return Unsupported(reason)
        try:
            made = self.attend(arrays_of(question), target=target, how=how)
        except InputError as error:
            return Unsupported(str(error))
        except ComparisonError as error:
            return Failed(str(error), ())
        except LostError as error:
            return Lost(str(error))
        return Output(np.ascontiguousarray(made.o.transpose(0, 2, 1, 3), np.float32), seconds=made.seconds)


def refused(op: Op) -> str:
    """Why an op cannot be given as arrays in f16; empty if it can."""
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
        Package("triton", triton_attention.attend, "in Triton's interpreter, without a GPU"),
        Package("tilelang", tilelang_attention.attend),
        Package("tilelang:jit", tilelang_runtime.attend),
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


def torch_backends() -> list[Package]:
    """The available PyTorch backends; without PyTorch, one contender that reports this."""
    try:
        found = torch_attention.backends()
    except InputError:
        found = ("math",)
    return [PACKAGES[f"{TORCH}{name}"] for name in found]
