"""Record the attention ops of a model's run as captures in a folder."""

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fattn_probe.activity import Step, quiet
from fattn_probe.build import Build
from fattn_probe.build.key import CAPTURE
from fattn_probe.device import Target
from fattn_probe.errors import InputError, LostError
from fattn_probe.files import make_folder, write_text
from fattn_probe.models.architectures import architecture_of, check_architecture, files_of
from fattn_probe.models.dialogue import converse, missing_or_error
from fattn_probe.models.index import INDEX, Entry, Index
from fattn_probe.models.recorded_op import Offer, capture_of_op, case_of_op
from fattn_probe.models.request import Request, check_layers, size_text
from fattn_probe.op.case_file import CaseFile
from fattn_probe.run.capture import Capture, capture_of, write_capture
from fattn_probe.run.command import describe
from fattn_probe.run.outcome import Missing, Ran
from fattn_probe.run.session import Session
from fattn_probe.scratch import scratch

CPU = Target("cpu")
MEMORY = Path("/proc/meminfo")
Note = Callable[[str], None]


@dataclass
class Recorder:
    """Answers fattn-capture, and writes the ops that it takes.

    `kept` makes the capture that is written of a case, and of the capture with the model's own output.
    """

    request: Request
    folder: Path
    raw: Path
    provenance: Mapping[str, str]
    kept: Callable[[Capture], Capture]
    note: Note
    step: Step
    entries: list[Entry] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    model: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)
    offer: Offer | None = None

    @property
    def spent(self) -> int:
        """The bytes recorded so far."""
        return sum(entry.offer.bytes for entry in self.entries)

    def answer(self, message: Mapping[str, Any]) -> str:
        """The answer to a line of the program."""
        match message:
            case {"model": found}:
                check_layers(self.request, found["layers"])
                self.model = found
                return "go"
            case {"step": number}:
                self.step(f"evaluating step {number + 1} of {self.model['steps']}")
                return "go"
            case {"offer": found}:
                return self.consider(Offer(**found))
            case {"op": found}:
                self.record(found)
                return "next"
            case {"end": found}:
                self.end = found
                return ""
        raise LostError(f"fattn-capture said {message}")

    def consider(self, offer: Offer) -> str:
        """Whether to take an op: as long as there is room."""
        if self.offer is None:
            self.note(expected_size(self.request, self.model, offer))
        self.offer = offer
        if self.spent + offer.bytes <= self.request.budget:
            return "yes"
        self.left_out.append(offer.name)
        return "no"

    def record(self, described: Mapping[str, Any]) -> None:
        """Write the op that was taken last."""
        assert self.offer is not None, "an op is offered first"
        raw = np.memmap(self.raw, np.uint8, "r")
        place = {name: str(getattr(self.offer, name)) for name in ("layer", "step", "part", "phase")}
        case = case_of_op(self.offer.name, described, raw)
        found = self.kept(capture_of_op(case, described, raw, {**self.provenance, **place}))
        path = self.folder / f"{self.offer.name}.gguf"
        write_capture(found, path)
        self.entries.append(Entry(path.name, found.digest, self.offer, found.op))


def expected_size(request: Request, model: Mapping[str, Any], first: Offer) -> str:
    """The sizes to expect, in words, from the first op: other layers and steps may be smaller."""
    layers = len(request.layers) or model["layers"]
    steps = model["steps"] if request.every else 1 + (first.step + 1 < model["steps"])
    size = layers * steps * first.most
    words = f"{layers} layers in {steps} steps: about {size_text(size)}"
    bound = "" if size <= request.budget else f", of which --budget takes {size_text(request.budget)}"
    return f"{words} at most{bound}"


@dataclass(frozen=True)
class ModelCapture:
    """Captures of a model's ops: which run, by which builds, on which target, to which folder."""

    session: Session
    request: Request
    target: Target
    folder: Path
    note: Note
    step: Step = quiet

    def run(self) -> Index:
        """Record, and write the index, also of a run that ends early; returns the index.

        InputError for a model or a prompt that cannot be run, or a folder with other captures.
        """
        model = self.request.model
        architecture = known_architecture(self.session, model)
        make_folder(self.folder, "--out")
        if (self.folder / INDEX).exists():
            raise InputError(f"{self.folder} holds captured ops: choose another folder")
        try:
            build_libllama(self.session, CPU, architecture, self.step)
            with scratch() as folder:
                index = self.completed(folder, architecture)
        finally:
            with contextlib.suppress(OSError):  # it stays if it is not empty
                self.folder.rmdir()
        if not index.entries:
            reason = "--budget has no room for any" if index.left_out else "the model has none"
            raise InputError(f"{model}: no attention op was recorded: {reason} that was asked for")
        return index

    def completed(self, folder: Path, architecture: str) -> Index:
        """Run the program again and again, until no function is missing."""
        raw = folder / "raw"
        words = [*program_words(self.session, self.request, folder, raw), "--memory", str(available_memory())]

        def attempt(build: Build) -> Missing | Index:
            argv = [str(build.program(CAPTURE)), *words]
            return self.attempt(argv, raw, architecture)

        found = self.session.completing(self.request.model.name, CPU, CAPTURE, attempt)
        assert isinstance(found, Index), "a missing function is compiled"
        return found

    def attempt(self, argv: list[str], raw: Path, architecture: str) -> Missing | Index:
        """Run the program once."""
        recorder = Recorder(
            self.request, self.folder, raw, self.provenance(architecture), self.kept, self.note, self.step
        )
        complete = False
        self.step("loading the model")
        try:
            env = self.session.env(CPU, CAPTURE)
            done = converse(argv, env, self.session.options.timeout, recorder.answer)
            missing = missing_or_error(done, str(self.request.model))
            complete = missing is None
        finally:
            index = self.index(recorder, architecture, complete=complete)
            if recorder.entries:
                index.write(self.folder)
        return missing or index

    def provenance(self, architecture: str) -> dict[str, str]:
        """The provenance of what the model computes."""
        found = self.session.provenance_of_build(CPU, self.request.prompt.seed, CAPTURE)
        return found | {"model": self.request.model.name, "architecture": architecture, "model_on": str(CPU)}

    def kept(self, found: Capture) -> Capture:
        """The capture that is written: the model's own, or that of a GPU, simulated or real, on the same inputs."""
        if self.target.engine == "cpu":
            return found
        case = CaseFile(found.name, found.digest, found.op, found.inputs)
        outcome = self.session.run(case, found.inputs, self.target)
        if not isinstance(outcome, Ran):
            raise LostError(f"{found.name} on {self.target}: {describe(outcome)}")
        replayed = self.session.provenance_of_build(self.target, self.request.prompt.seed)
        return capture_of(case, found.inputs, outcome, {**found.provenance, **replayed})

    def index(self, recorder: Recorder, architecture: str, *, complete: bool) -> Index:
        """The index of what is recorded."""
        manifest = self.session.build_for(CPU, CAPTURE).manifest
        model = {"file": self.request.model.name, "architecture": architecture}
        model |= {key: recorder.model[key] for key in ("description", "layers", "context") if key in recorder.model}
        run = {
            "model": model,
            "prompts": recorder.model.get("prompts", []),
            "generated": recorder.end.get("generated", []),
            "finite": recorder.end.get("finite"),
            "steps": recorder.model.get("steps", 0),
            "source": manifest.source,
            "build_number": manifest.build_number,
            "device": str(self.target),
        }
        return Index(complete, run, recorder.entries, recorder.left_out)


def known_architecture(session: Session, model: Path) -> str:
    """The architecture of a model; InputError if the session's tree does not know it."""
    tree = session.options.tree
    if tree is None:
        raise InputError("a source is needed to build libllama from")
    architecture = architecture_of(model)
    check_architecture(tree, model, architecture)
    return architecture


def build_libllama(session: Session, target: Target, architecture: str, step: Step) -> None:
    """Compile libllama with an architecture into the build of a target."""
    assert session.options.tree is not None, "whose architecture it is"
    step("building libllama")
    session.add_kernels(target, (), CAPTURE, architectures=files_of(session.options.tree, architecture))


def program_words(session: Session, request: Request, folder: Path, raw: Path) -> list[str]:
    """The command line of fattn-capture; a prompt in words is written to the folder."""
    threads = session.options.simulation.threads or os.cpu_count() or 1
    words = [str(request.model), str(raw), *request.words(threads)]
    if request.prompt.text is None:
        return words
    write_text(prompt := folder / "prompt", request.prompt.text)
    return [*words, "--prompt", str(prompt)]


def available_memory() -> int:
    """The bytes that the machine has left for a program; 0 if it does not say."""
    lines = MEMORY.read_text().splitlines() if MEMORY.is_file() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 0)
