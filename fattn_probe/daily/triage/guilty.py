"""The verdicts of a triage: one class for each kind of culprit, and for a run without one."""

from collections.abc import Mapping
from dataclasses import dataclass

from fattn_probe.daily.models.walk import Node, TensorDifference
from fattn_probe.llama.launch.tiles import Tile
from fattn_probe.machine.run.outcome import Failed, Finding
from fattn_probe.verdict.measure.metrics import Coordinate


@dataclass(frozen=True)
class AttentionWrong:
    """An attention op whose output on a target is wrong.

    `worst` is its worst element, `tile` the element's output tile and `blocks` the CUDA blocks that computed it, if
    known. `cause` is the diagnosis in words, empty without one; `finding` the fault that ended the run without an
    output. `case` is the name of its case file.
    """

    layer: int
    step: int
    part: int
    target: str
    case: str
    kernel: str
    reason: str
    cause: str = ""
    worst: Coordinate | None = None
    tile: Tile | None = None
    blocks: tuple[int, ...] = ()
    finding: Finding | None = None
    known: str = ""

    @property
    def head(self) -> int | None:
        """The head of the worst element."""
        return None if self.worst is None else self.worst.head


@dataclass(frozen=True)
class AttentionOverflows:
    """An attention op whose output is not finite because of its kernel's arithmetic on these inputs."""

    layer: int
    step: int
    part: int
    target: str
    case: str
    kernel: str
    elements: int
    reason: str


@dataclass(frozen=True)
class OtherOpWrong:
    """An op other than attention that is wrong on a target; `allowed` is the largest NMSE of a correct output.

    `found` is the difference from the CPU's output, or the fault of an op without an output.
    """

    node: Node
    target: str
    found: TensorDifference | Finding | Failed
    allowed: float


@dataclass(frozen=True)
class NotFinite:
    """The first tensor with NaN or infinities that its inputs do not explain, in the model's own run on the CPU.

    `inputs_largest` is the largest magnitude in its inputs that are tensors of the graph, None if there are none.
    `finite_without`: whether the tensor is finite without flash attention; None if that run has no such tensor.
    """

    node: Node
    inputs_largest: float | None = None
    finite_without: bool | None = None


@dataclass(frozen=True)
class PartsWithout:
    """The first tensor that differs from the run without flash attention.

    `change` is the difference between the largest magnitudes, as a share of the larger one; `before` the largest such
    change in the earlier tensors. Only these magnitudes are compared: a tensor that is permuted, or has wrong signs,
    is not detected if its largest magnitude is the same.
    """

    node: Node
    other: Node
    change: float
    before: float


@dataclass(frozen=True)
class AsDesigned:
    """No op is wrong, but some are inaccurate by design: the accuracy warnings by layer."""

    warnings: Mapping[int, tuple[str, ...]]


@dataclass(frozen=True)
class Innocent:
    """No op is wrong, and none is inaccurate."""


@dataclass(frozen=True)
class Unknown:
    """No op is known to be wrong, but a run was lost, or no attention op was judged; `reason` says which and why."""

    reason: str
    lost: bool = False


Culprit = AttentionWrong | AttentionOverflows | OtherOpWrong | NotFinite | PartsWithout
Guilty = Culprit | AsDesigned | Innocent | Unknown


@dataclass(frozen=True)
class Answer:
    """The first culprit in the order of computation, or none; and the first of each other kind, in the same order."""

    guilty: Guilty
    others: tuple[Culprit, ...] = ()

    @property
    def is_wrong(self) -> bool:
        """Whether there is a culprit."""
        return not isinstance(self.guilty, AsDesigned | Innocent | Unknown)
