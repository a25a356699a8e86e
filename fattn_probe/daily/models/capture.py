"""Record the attention ops of a model's run as captures in a folder."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fattn_probe.base.activity import Step, quiet
from fattn_probe.base.errors import InputError, LostError
from fattn_probe.base.figures import number_of
from fattn_probe.base.files import make_folder, scratch
from fattn_probe.base.signals import deferred
from fattn_probe.cases.device import Target
from fattn_probe.cases.op.case_file import CaseFile, QuantBlocks
from fattn_probe.daily.models.on_device import OnDevice, prepared
from fattn_probe.daily.models.program import (
    CPU,
    Request,
    available_memory,
    check_layers,
    converse,
    known_architecture,
    missing_or_error,
    program_words,
    size_text,
)
from fattn_probe.daily.models.recorded_op import INDEX, Index, IndexEntry, Offer, capture_of_op, case_of_op
from fattn_probe.llama.build import Build
from fattn_probe.llama.build.key import CAPTURE, DEVICE_CAPTURE
from fattn_probe.llama.launch.record import LaunchRecord, Names, Types, parse_launches
from fattn_probe.machine.run.capture import Capture, capture_of, write_capture
from fattn_probe.machine.run.command import describe
from fattn_probe.machine.run.outcome import Missing, Ran
from fattn_probe.machine.run.runner import LAUNCHES_ENV
from fattn_probe.machine.run.session import Session

Note = Callable[[str], None]


@dataclass
class LaunchLog:
    """A file of launch records; `read` counts the bytes read so far."""

    path: Path
    types: Types | None = None
    names: Names | None = None
    read: int = 0

    def skip(self) -> None:
        """Skip the launches so far."""
        self.read = self.path.stat().st_size if self.path.exists() else 0

    def launched(self) -> tuple[LaunchRecord, ...]:
        """The launches since the last call to `skip` or this method; empty if the backend launches no kernels."""
        start = self.read
        self.skip()
        text = self.path.read_bytes()[start : self.read].decode() if self.read > start else ""
        return parse_launches(text, types=self.types, names=self.names)


@dataclass
class Recorder:
    """Replies to fattn-capture; writes the chosen ops to a folder, and their bytes to the shared `blocks`.

    `raw` contains the bytes of the op being recorded, `launches` the model's launches. `kept` receives the capture with
    the model's own output, and returns the capture to write.
    """

    request: Request
    folder: Path
    raw: Path
    launches: LaunchLog
    blocks: QuantBlocks
    provenance: Mapping[str, str]
    kept: Callable[[Capture], Capture]
    note: Note
    step: Step
    written: int = 0
    entries: list[IndexEntry] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    model: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)
    offer: Offer | None = None

    @property
    def spent(self) -> int:
        """Number of bytes written to disk so far."""
        return self.written + self.blocks.nbytes

    def answer(self, message: Mapping[str, Any]) -> str:
        """The reply to a line from fattn-capture."""
        match message:
            case {"model": found}:
                check_layers(self.request, found["layers"])
                self.model = found
                return "go"
            case {"step": number}:
                self.step(f"evaluating step {number + 1} of {self.model['steps']}")
                return "go"
            case {"offer": found}:
                offer = Offer(**found)
                if self.offer is None:
                    self.note(expected_size(self.request, self.model, offer))
                self.offer = offer
                if self.spent + offer.bytes <= self.request.budget:
                    self.launches.skip()
                    return "yes"
                self.left_out.append(offer.name)
                return "no"
            case {"op": found, "ran_on": ran_on}:
                self.record(found, ran_on)
                return "next"
            case {"end": found}:
                self.end = found
                return ""
        raise LostError(f"unexpected message from fattn-capture: {message}")

    def record(self, described: Mapping[str, Any], ran_on: Mapping[str, Mapping[str, int]]) -> None:
        """Write the op chosen last; `ran_on` counts the runs of each op so far, by device."""
        assert self.offer is not None, "an op is offered first"
        raw = np.memmap(self.raw, np.uint8, "r")
        place = {name: str(getattr(self.offer, name)) for name in ("layer", "step", "part", "phase")}
        case = case_of_op(self.offer.name, described, raw)
        own = capture_of_op(case, described, raw, {**self.provenance, **place, "ran_on": words_of(ran_on)})
        found = self.kept(replace(own, launches=self.launches.launched(), device=self.model["device"]))
        path = self.folder / f"{self.offer.name}.gguf"
        with deferred():  # an interrupt between these two lines would leave a file that the index does not list
            write_capture(found, path, self.blocks)
            self.written += path.stat().st_size
            self.entries.append(IndexEntry(path.name, found.digest, self.offer, found.op))


def words_of(ran_on: Mapping[str, Mapping[str, int]]) -> str:
    """The ops by device, in words: `CPU: GET_ROWS; CUDA0: ADD, ROPE`."""
    return "; ".join(f"{device}: {', '.join(sorted(ops))}" for device, ops in ran_on.items())


def expected_size(request: Request, model: Mapping[str, Any], first: Offer) -> str:
    """Describe the expected total size, estimated from the first op; other layers and steps may be smaller."""
    layers = len(request.layers) or model["layers"]
    steps = model["steps"] if request.every else 1 + (first.step + 1 < model["steps"])
    size = layers * steps * first.most
    bound = "" if size <= request.budget else f", of which --budget allows {size_text(request.budget)}"
    return f"{number_of(layers, 'layer')} in {number_of(steps, 'step')}: at most about {size_text(size)}{bound}"


@dataclass(frozen=True)
class ModelCapture:
    """Captures a model's ops: holds the session, the request, the target and the folder.

    If the model runs on the target, its ops are recorded there; otherwise the target replays the CPU's ops.
    """

    session: Session
    request: Request
    target: Target
    folder: Path
    note: Note
    step: Step = quiet
    model_on: Target = CPU

    def run(self) -> Index:
        """Record the ops, then write and return the index, even if the run ends early.

        Raises InputError if the model or prompt cannot be run, or the folder has other captures.
        """
        model = self.request.model
        architecture = known_architecture(self.session, model)
        make_folder(self.folder, "--out")
        if (self.folder / INDEX).exists():
            raise InputError(f"{self.folder} holds captured ops: choose another folder")
        try:
            on_device = prepared(self.session, self.request, self.model_on, architecture, self.step)
            with scratch() as folder:
                index = self.completed(folder, architecture, on_device)
        finally:
            with contextlib.suppress(OSError):  # the folder stays if it is not empty
                self.folder.rmdir()
        if not index.entries:
            reason = "--budget has no room for any" if index.left_out else "the model has none"
            raise InputError(f"{model}: no attention op was recorded: {reason} that was requested")
        return index

    @property
    def program(self) -> str:
        """The program that runs the model."""
        return CAPTURE if self.model_on.engine == "cpu" else DEVICE_CAPTURE

    def completed(self, folder: Path, architecture: str, on_device: OnDevice) -> Index:
        """Run the program; while it lacks a function, compile that function and run it again.

        On the CPU, the program is limited to the machine's memory; a CUDA driver reserves more than that.
        """
        words = [*program_words(self.session, self.request, folder, folder / "raw"), *on_device.words]
        words += ["--memory", str(available_memory())] if self.model_on.engine == "cpu" else []
        env = {**self.session.env(self.model_on, self.program), **on_device.env}
        blocks = QuantBlocks(self.folder)

        def attempt(build: Build) -> Missing | Index:
            return self.attempt([str(build.program(self.program)), *words], env, folder, architecture, blocks)

        found = self.session.completing(self.request.model.name, self.model_on, self.program, attempt)
        assert isinstance(found, Index), "a missing function is compiled"
        return found

    def attempt(
        self, argv: list[str], env: Mapping[str, str], folder: Path, architecture: str, blocks: QuantBlocks
    ) -> Missing | Index:
        """Run the program once; its files are in `folder`."""
        launches = LaunchLog(folder / "launches", *self.session.kernel_words)
        launches.path.unlink(missing_ok=True)
        model, seed = self.request.model.name, self.request.prompt.seed
        found = self.session.provenance(self.model_on, seed, self.program) | {"model": model}
        recorder = Recorder(
            request=self.request,
            folder=self.folder,
            raw=folder / "raw",
            launches=launches,
            blocks=blocks,
            provenance={**found, "architecture": architecture, "model_on": str(self.model_on)},
            kept=self.kept,
            note=self.note,
            step=self.step,
        )
        complete = False
        self.step("loading the model")
        try:
            env = {**env, LAUNCHES_ENV: str(launches.path)}
            done = converse(argv, env, self.session.options.timeout, recorder.answer)
            missing = missing_or_error(done, str(self.request.model))
            complete = missing is None
        finally:
            index = self.index(recorder, architecture, complete=complete)
            if recorder.entries:
                index.write(self.folder)
        return missing or index

    def kept(self, found: Capture) -> Capture:
        """The capture to write: the model's own, or one from a simulated or real GPU with the same inputs.

        Raises InputError for an op that ggml did not run on the model's device.
        """
        if found.backend != self.model_on.backend:
            raise InputError(f"{found.name}: {self.model_on} does not support this op: it ran on {found.backend}")
        if self.target == self.model_on:
            return found
        case = CaseFile(found.name, found.digest, found.op, found.inputs)
        outcome = self.session.run(case, found.inputs, self.target)
        if not isinstance(outcome, Ran):
            raise LostError(f"{found.name} on {self.target}: {describe(outcome)}")
        replayed = self.session.provenance(self.target, self.request.prompt.seed)
        return capture_of(case, found.inputs, outcome, {**found.provenance, **replayed})

    def index(self, recorder: Recorder, architecture: str, *, complete: bool) -> Index:
        """The index of the recorded ops."""
        manifest = self.session.build_for(self.model_on, self.program).manifest
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
            "model_on": str(self.model_on),
            "ran_on": recorder.end.get("ran_on", {}),
        }
        return Index(complete, run, recorder.entries, recorder.left_out, recorder.spent)
