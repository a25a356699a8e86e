"""The tensors of a model's graph, one by one: their contents, and the results of devices from the same inputs."""

from collections.abc import Mapping
from dataclasses import dataclass

from fattn_probe.machine.run.outcome import Failed, Fault


@dataclass(frozen=True)
class TensorDifference:
    """An op's output on a device, compared with the same op on the CPU with the same inputs.

    `nmse` is sum((device - cpu)^2) / sum(cpu^2) over values that are finite on both; 0 if both are all zero. `max_abs`
    is the largest difference of these, `at` its place in ggml's ne order. `nan` and `inf` count values that are NaN or
    infinite on only one side: equal infinities count as equal, because masks contain -inf on purpose. If there are any,
    `at` is the first of them.
    """

    nmse: float
    max_abs: float
    at: tuple[int, int, int, int]
    nan: int
    inf: int


@dataclass(frozen=True)
class Node:
    """A tensor of a graph, in the order of computation.

    `step` is the evaluation, `part` the part of it, `index` the position in the graph. `nan`, `inf` (of both signs) and
    `largest` (finite magnitude) are of the model's own output, on the CPU; `inputs_nan` and `inputs_inf` of the sources
    as they were when the op ran. `on` has the result on each target ("sim:h200"): the difference, or a fault in the
    op's kernel or an error of ggml if it stopped; None if the target does not run this op.
    """

    step: int
    part: int
    index: int
    name: str
    op: str
    layer: int | None
    type: str
    ne: tuple[int, int, int, int]
    nan: int
    inf: int
    largest: float
    inputs: tuple[str, ...]
    inputs_nan: int
    inputs_inf: int
    on: Mapping[str, TensorDifference | Fault | Failed | None]
