"""Walk through a model's graph: examine each tensor, and compare devices' outputs for the same inputs.

A device can run the ops around attention whose .cu files are in the tree.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fattn_probe.base.activity import Step, quiet
from fattn_probe.base.errors import LostError
from fattn_probe.base.files import scratch
from fattn_probe.cases.device import Target
from fattn_probe.daily.models.program import (
    CPU,
    Prompt,
    Request,
    available_memory,
    build_libllama,
    converse,
    known_architecture,
    missing_or_error,
    program_words,
)
from fattn_probe.llama.build import RUNNER, Build
from fattn_probe.llama.build.key import CAPTURE
from fattn_probe.llama.build.sources import BACKEND, CONVERSIONS, CUDA
from fattn_probe.llama.build.symbols import defining_source
from fattn_probe.llama.source import Tree
from fattn_probe.machine.run.frames import symbolised
from fattn_probe.machine.run.outcome import UNKNOWN_INSTRUCTION, Failed, Finding, Missing, parse_ending
from fattn_probe.machine.run.session import Session

ATTENTION = "FLASH_ATTN_EXT"
PRODUCTS = {
    op: re.compile(rf"^static void ggml_cuda_{op.lower()}\(.*?^\}}", re.MULTILINE | re.DOTALL)
    for op in ("MUL_MAT", "MUL_MAT_ID")
}
"""ggml's functions for matrix products, which choose between cuBLAS and kernels in several files."""
CALL = re.compile(r"\b(ggml_cuda_\w+|\w+_cuda)\(")
ELSEWHERE = frozenset({ATTENTION, *PRODUCTS, "OUT_PROD"})
"""Ops that a device does not run: `capture` replays attention; matrix products need cuBLAS, and minutes to compile."""
CUBLAS = re.compile(r"\bcublas\w+\(")
DISPATCH = re.compile(r"^static bool ggml_cuda_compute_forward\(.*?^\}", re.MULTILINE | re.DOTALL)
# `case GGML_OP_ADD: case GGML_OP_ADD1: ggml_cuda_op_add(ctx, dst);`; a case with a nested switch yields its first call
CASE = re.compile(r"(?P<cases>(?:case\s+GGML_OP_\w+:[^\n]*\s+)+)(?P<body>[^;]*?)\b(?P<function>ggml_cuda_\w+)\(")
OP = re.compile(r"GGML_OP_(\w+)")


def device_ops(tree: Tree, *, cublas: bool = False) -> dict[str, str]:
    """The .cu file in ggml-cuda/ of each op, by ggml's op name; files that call cuBLAS only if requested."""
    cuda = tree.root / CUDA
    dispatch = DISPATCH.search((cuda / BACKEND).read_text(errors="replace"))
    functions = functions_of(dispatch.group()) if dispatch else {}
    files = sorted(cuda.glob("*.cu"))
    files = [path for path in files if cublas or not CUBLAS.search(path.read_text(errors="replace"))]
    found = {op: defining_source(name, files) for op, name in functions.items() if op not in ELSEWHERE}
    return {op: file for op, file in found.items() if file not in (None, BACKEND)}


def files_of_device_ops(tree: Tree, *, cublas: bool) -> dict[str, tuple[str, ...]]:
    """The .cu files of ops that a model may need on a CUDA device: attention, `device_ops`, matrix products.

    With `cublas`, they include the files that call cuBLAS, and those with kernels and conversions for matrix products.
    """
    found: dict[str, tuple[str, ...]] = {ATTENTION: ()}
    found |= {op: (file,) for op, file in device_ops(tree, cublas=cublas).items()}
    if not cublas:
        return found
    cuda = tree.root / CUDA
    text = (cuda / BACKEND).read_text(errors="replace")
    files = [path for path in sorted(cuda.glob("*.cu")) if path.name != BACKEND]
    bodies = {op: PRODUCTS[op].search(text) for op in PRODUCTS}
    calls = {op: dict.fromkeys(CALL.findall(body.group())) for op, body in bodies.items() if body}
    named = {op: {defining_source(name, files) for name in names} for op, names in calls.items()}
    return found | {op: tuple(sorted({CONVERSIONS, *filter(None, names)})) for op, names in named.items()}


def functions_of(dispatch: str) -> dict[str, str]:
    """The function that runs each op, parsed from the text of ggml's dispatch."""
    return {op: match["function"] for match in CASE.finditer(dispatch) for op in OP.findall(match["cases"])}


def files_of_ops(files: Mapping[str, str], ops: Iterable[str]) -> tuple[str, ...]:
    """The files that these ops need, each once."""
    return tuple(sorted({files[op] for op in ops if op in files}))


@dataclass(frozen=True)
class TensorDifference:
    """An op's output on a device, compared with the same op on the CPU with the same inputs.

    `nmse` is sum((device - cpu)^2) / sum(cpu^2) over values that are finite on both; 0 if both are all zero. `max_abs`
    is their largest difference, `at` its position in ggml's ne order. `nan` and `inf` count values that are NaN or
    infinite on only one side (masks contain -inf on purpose); then `at` is the first of them.
    """

    nmse: float
    max_abs: float
    at: tuple[int, int, int, int]
    nan: int
    inf: int


@dataclass(frozen=True)
class Node:
    """A tensor of a graph, in the order of computation.

    `step` is the number of the evaluation, `part` the micro-batch in it, `index` the position in the graph. `nan`,
    `inf` (of both signs) and `largest` (finite magnitude) describe the model's own output, on the CPU; `inputs_nan`
    and `inputs_inf` are the counts for the op's inputs when it ran. `on` has the result on each target ("sim:h200"):
    the difference; if the op stopped, the fault in its kernel or ggml's message; None if the target does not run it.
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
    on: Mapping[str, TensorDifference | Finding | Failed | None]


Nodes = tuple[Node, ...]
LIMITS = frozenset({"unsupported", UNKNOWN_INSTRUCTION})
"""Kinds of findings for features that the simulator does not support."""
# `Qcur-3`, `cache_k_l3 (view)`, `blk.3.attn_norm.weight`
LAYER = re.compile(r"-(\d+)(?![\w.])|_l(\d+)\b|^blk\.(\d+)\.")


def walk(session: Session, request: Request, targets: Sequence[Target], step: Step = quiet) -> Nodes:
    """The tensors of a model's run on the CPU, in the order of computation, each with the targets' results.

    The steps are those that `capture` records; a request's layers and budget are ignored. A crashed op is not repeated.
    """
    architecture = known_architecture(session, request.model)
    devices = [target for target in targets if target.engine != "cpu"]
    return merged([Walk(session, request, target, architecture, step).nodes() for target in devices or [CPU]])


@dataclass
class TensorReader:
    """Replies to fattn-capture, and stores its data about each tensor; `running` is the op now running on a device."""

    target: Target
    step: Step
    nodes: list[Node] = field(default_factory=list)
    model: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""
    running: str = ""

    def answer(self, message: Mapping[str, Any]) -> str:
        """The reply to a line from fattn-capture."""
        match message:
            case {"model": found}:
                self.model = found
            case {"step": number}:
                self.place = f"step {number + 1} of {self.model['steps']}"
                self.step(f"walking through {self.place}")
            case {"runs": op}:
                self.running = op
                self.step(f"walking through {self.place}: {op} on {self.target}")
            case {"node": found}:
                self.running = ""
                self.nodes.append(node_of(found, self.target))
            case {"end": _}:
                return ""
            case _:
                raise LostError(f"unexpected message from fattn-capture: {message}")
        return "next" if "node" in message else "go"


Reached = tuple[Nodes, str, Finding | Failed | None]
"""The tensors that a run reached; then the op that stopped it, and the fault, if any."""


@dataclass(frozen=True)
class Walk:
    """One run of a model, with the ops around attention also run on a device, unless the target is the CPU."""

    session: Session
    request: Request
    target: Target
    architecture: str
    step: Step

    def nodes(self) -> Nodes:
        """Build what the run needs, including the ops of the model's graph for a device, and run it."""
        build_libllama(self.session, self.target, self.architecture, self.step)
        if self.target.engine == "cpu":
            return self.run(self.request, ())
        tree = self.session.options.tree
        assert tree is not None, "the architecture was read from a tree"
        found, files = self.graph_ops(), device_ops(tree)
        self.step(f"compiling the ops of the model for {self.target}")
        self.session.add_kernels(self.target, (), RUNNER, sources=files_of_ops(files, found))
        return self.run(self.request, sorted(files))

    def graph_ops(self) -> frozenset[str]:
        """The ops of the model's graph, found by a run of one token on the CPU."""
        self.step("finding the ops of the model")
        one = replace(self.request, prompt=Prompt(tokens=1), generate=0, context=0, sequences=1)
        return frozenset(node.op for node in self.run(one, ()))

    def run(self, request: Request, ops: Sequence[str]) -> Nodes:
        """Run the program; if an op stops it, run it again without that op."""
        with scratch() as folder:
            words = program_words(self.session, request, folder, folder / "raw")
            words += ["--memory", str(available_memory()), "--walk"]
            words += [word for op in ops for word in ("--device-op", op)]

            def attempt(build: Build) -> Missing | Reached:
                return self.attempt([str(build.program(CAPTURE)), *words])

            found = self.session.completing(request.model.name, self.target, CAPTURE, attempt)
        assert not isinstance(found, Missing), "a missing function is compiled"
        nodes, stopped, ending = found
        if ending is None:
            return nodes
        rest = self.run(request, [op for op in ops if op != stopped])
        return (*nodes, replace(rest[len(nodes)], on={str(self.target): blamed(ending)}), *rest[len(nodes) + 1 :])

    def attempt(self, argv: list[str]) -> Missing | Reached:
        """Run the program once."""
        reader = TensorReader(self.target, self.step)
        done = converse(argv, self.session.env(self.target, CAPTURE), self.session.options.timeout, reader.answer)
        ending = parse_ending(done) if reader.running else None
        if isinstance(ending, Finding | Failed):
            shown = symbolised(ending) if isinstance(ending, Finding) else ending
            return tuple(reader.nodes), reader.running.partition(" ")[0], shown
        return missing_or_error(done, str(self.request.model)) or (tuple(reader.nodes), "", None)


def blamed(ending: Finding | Failed) -> Finding | Failed | None:
    """The fault of an op that did not finish; None if the simulator only lacks support for the op."""
    return None if isinstance(ending, Finding) and ending.kind in LIMITS else ending


def node_of(said: Mapping[str, Any], target: Target) -> Node:
    """A tensor as fattn-capture describes it (`describe` in native/models/walker.h)."""
    own = {key: value for key, value in said.items() if key not in ("ne", "inputs", "device")}
    on = {} if target.engine == "cpu" else {str(target): difference_of(said["device"])}
    inputs = tuple(said["inputs"])
    return Node(**own, layer=layer_of(said["name"], inputs), ne=place_of(said["ne"]), inputs=inputs, on=on)


def difference_of(said: Mapping[str, Any] | None) -> TensorDifference | None:
    """The difference between the outputs of a device and the CPU, from the sums of squares."""
    if said is None:
        return None
    error, signal = said["error"], said["signal"]
    nmse = error / signal if signal else (float("inf") if error else 0.0)
    return TensorDifference(nmse, said["max_abs"], place_of(said["at"]), said["nan"], said["inf"])


def place_of(numbers: Sequence[int]) -> tuple[int, int, int, int]:
    """Four numbers in ggml's ne order."""
    return (numbers[0], numbers[1], numbers[2], numbers[3])


def layer_of(name: str, inputs: Iterable[str]) -> int | None:
    """The layer in a tensor's name; without one, the last layer among its inputs."""
    numbers = [[int(next(filter(None, match.groups()))) for match in LAYER.finditer(one)] for one in (name, *inputs)]
    own, *others = ([] if not found else [found[-1]] for found in numbers)
    return max(own or [layer for found in others for layer in found], default=None)


def merged(walks: Sequence[Nodes]) -> Nodes:
    """The tensors of runs with different devices; raises LostError if the CPU's results differ between the runs."""
    if len({tuple(identity(node) for node in nodes) for nodes in walks}) > 1:
        raise LostError("two runs of the model on the CPU differ")
    return tuple(
        replace(same[0], on={target: found for node in same for target, found in node.on.items()})
        for same in zip(*walks, strict=True)
    )


def identity(node: Node) -> tuple[Any, ...]:
    """A key that identifies the same tensor in every run of a model."""
    return (node.step, node.part, node.index, node.name, node.op, node.nan, node.inf, node.largest)
