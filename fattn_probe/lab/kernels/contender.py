"""A contender, which is an attention kernel that runs cases, and the question that it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from fattn_probe.base.arrays import F32, Bytes
from fattn_probe.cases.device import Target
from fattn_probe.cases.op import Op
from fattn_probe.cases.op.values import row_bytes
from fattn_probe.cases.scenario import Case
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.machine.run.outcome import Failed, Finding, Lost, Unsupported
from fattn_probe.machine.run.simulator import Simulation
from fattn_probe.verdict.truth.error_model.kernel import Kernel

Timing = tuple[int, int]
"""The numbers of warm-up runs and timed runs of a kernel on a GPU."""
UNTIMED: Timing = (0, 0)


@dataclass(frozen=True)
class How:
    """The options of a contender's run: timing on a GPU, the simulator's order of threads, the checker."""

    timing: Timing = (3, 20)
    simulation: Simulation = field(default_factory=Simulation)
    check: bool = False
    timeout: float = 600.0

    def timing_on(self, target: Target) -> Timing:
        """The warm-up and timed runs on a target; a single run on a simulated GPU, because time is not simulated."""
        return self.timing if target.engine == "cuda" else UNTIMED


@dataclass(frozen=True, eq=False)
class Output:
    """The results of a kernel: `dst` (n_seq, n_q, n_head, hsv), dst's `ne` reversed, and seconds per timed run."""

    dst: F32
    launches: tuple[LaunchRecord, ...] = ()
    seconds: tuple[float, ...] = ()


Outcome = Output | Unsupported | Finding | Failed | Lost


@dataclass(frozen=True, eq=False)
class Question:
    """A case with the bytes of its operands."""

    case: Case
    inputs: Mapping[str, Bytes]

    @property
    def op(self) -> Op:
        """The case's op."""
        return self.case.op

    @cached_property
    def causal(self) -> bool:
        """Whether query i sees exactly the KV rows up to i + n_kv - n_q: based on the mask's values, not its name."""
        if not self.op.has_mask or self.op.params.max_bias:
            return False
        view = self.op.operands["mask"]
        n_kv, n_q = view.ne[:2]
        mask = row_bytes(view, self.inputs).view(np.float16)
        seen = np.arange(n_kv) <= np.arange(n_q)[:, None] + n_kv - n_q
        wanted = np.where(seen, np.float16(0), np.float16(-np.inf))
        return all(np.array_equal(plane, wanted) for plane in mask.reshape(-1, n_q, n_kv))


class Contender(Protocol):
    """An attention kernel. `algorithm` is the name of its algorithm in `study`; empty if unknown."""

    @property
    def name(self) -> str:
        """The contender's name for the user."""

    @property
    def algorithm(self) -> str:
        """The algorithm of `study` that the kernel implements."""

    def arithmetic(self, op: Op) -> Kernel | None:
        """The kernel's arithmetic, for the error model; None if unknown."""

    def run(self, question: Question, target: Target, how: How) -> Outcome:
        """Compute a case on a target."""


def refusal(op: Op) -> str:
    """The reason why no contender can compute an op; empty if some can. Contenders get Q, K, V, a mask and a scale."""
    has = {
        "ALiBi slopes": bool(op.params.max_bias),
        "softcap": bool(op.params.logit_softcap),
        "sinks": op.has_sinks,
        "n_kv_max": bool(op.params.n_kv_max),
    }
    missing = [name for name, wanted in has.items() if wanted]
    return f"the contract for kernels has no {' and no '.join(missing)}" if missing else ""
