"""Run a whole model on a CUDA device, after compiling the code for its graph."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fattn_probe.base.activity import Step
from fattn_probe.base.files import scratch
from fattn_probe.cases.device import Target
from fattn_probe.daily.models.program import CPU, Request, build_libllama, converse, missing_or_error, program_words
from fattn_probe.daily.models.walk import Walk, files_of_device_ops
from fattn_probe.llama.build import Build
from fattn_probe.llama.build.key import DEVICE_CAPTURE, kernels_apart
from fattn_probe.llama.build.sources import launches_file
from fattn_probe.llama.build.toolchain import has_cublas, library_path
from fattn_probe.llama.source import KernelCase, Tree
from fattn_probe.machine.run.outcome import Missing, missing_kernels
from fattn_probe.machine.run.prepare import KernelReader
from fattn_probe.machine.run.session import Session


def place_of_model(target: Target) -> Target:
    """The target on which the model runs if its ops are captured on `target`: the CPU for a simulated GPU."""
    return target if target.engine == "cuda" else CPU


@dataclass(frozen=True)
class OnDevice:
    """A model that runs on a CUDA device: the ops in the device's build, and the path to cuBLAS."""

    ops: tuple[str, ...] = ()
    libraries: str = ""

    @property
    def words(self) -> list[str]:
        """The options of fattn-capture."""
        return ["--on-device", *(word for op in self.ops for word in ("--device-op", op))] if self.ops else []

    @property
    def env(self) -> Mapping[str, str]:
        """The environment of fattn-capture, so that it finds cuBLAS."""
        return {"LD_LIBRARY_PATH": self.libraries} if self.libraries else {}


@dataclass
class Rehearsal:
    """Replies to fattn-capture, and records nothing."""

    step: Step
    model: Mapping[str, Any] = field(default_factory=dict)

    def answer(self, message: Mapping[str, Any]) -> str:
        """The reply to a line from fattn-capture."""
        match message:
            case {"model": found}:
                self.model = found
            case {"step": number}:
                self.step(f"finding the kernels of step {number + 1} of {self.model['steps']}")
            case {"offer": _}:
                return "no"
        return "" if "end" in message else "go"


def prepared(session: Session, request: Request, target: Target, architecture: str, step: Step) -> OnDevice:
    """Compile what a run of the model on a target needs: the ops of its graph, then the kernels of its attention.

    On the CPU, only libllama is needed. Matrix products run on the device if this machine has cuBLAS.
    """
    build_libllama(session, target, architecture, step)
    if target.engine == "cpu":
        return OnDevice()
    tree = session.options.tree
    assert tree is not None, "the architecture was read from a tree"
    found = Walk(session, request, target, architecture, step).graph_ops()
    cublas = target.engine == "cuda" and has_cublas()
    files = files_of_device_ops(tree, cublas=cublas)
    needed = tuple(sorted({name for op in found for name in files.get(op, ())}))
    step(f"compiling the ops of the model for {target}")
    build_libllama(session, target, architecture, step, program=DEVICE_CAPTURE, sources=needed)
    made = OnDevice(tuple(sorted(files)), library_path() if cublas else "")
    cases = kernel_cases(tree, skipped(session, request, target, made, step))
    if kernels_apart(target.engine, session.options.flavour):
        # A second run finds the kernels: a whole case's object would have the host function without its launch.
        launches = {launches_file(*case.sizes) for case in cases if not case.instance}
        kernels = [case for case in cases if case.instance]
        session.add_kernels(target, kernels, DEVICE_CAPTURE, sources=sorted(launches))
        cases = kernel_cases(tree, skipped(session, request, target, made, step))
    session.add_kernels(target, cases, DEVICE_CAPTURE)
    return made


def skipped(session: Session, request: Request, target: Target, on_device: OnDevice, step: Step) -> list[str]:
    """Mangled names of the kernels missing from the build, found by a run that skips them."""
    with scratch() as folder:
        words = [*program_words(session, request, folder, folder / "raw"), *on_device.words]
        env = {**session.env(target, DEVICE_CAPTURE), **on_device.env, "FATTN_PROBE_SKIP_KERNELS": "1"}

        def attempt(build: Build) -> Missing | list[str]:
            argv = [str(build.program(DEVICE_CAPTURE)), *words]
            done = converse(argv, env, session.options.timeout, Rehearsal(step).answer)
            return missing_or_error(done, str(request.model)) or missing_kernels(done.stderr)

        symbols = session.completing(request.model.name, target, DEVICE_CAPTURE, attempt)
    assert not isinstance(symbols, Missing), "a missing function is compiled"
    return symbols


def kernel_cases(tree: Tree, symbols: Iterable[str]) -> list[KernelCase]:
    """The kernel cases to which these mangled names belong."""
    found = map(KernelReader(tree).of_symbol, dict.fromkeys(symbols))
    return [case for case in found if case is not None]
