"""Targets, on which a case runs: `sim:ID`, `gpu`, `gpu:N` or `cpu`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from fattn_probe.device.catalogue import Device, find_device
from fattn_probe.errors import InputError

ALLOWED = "allowed: sim:ID (see `fattn-probe device list`), gpu, gpu:N, cpu"


@dataclass(frozen=True)
class Target:
    """An engine and its device: a catalogue device for `sim`, the index of a real GPU for `cuda`."""

    engine: Literal["sim", "cuda", "cpu"]
    device: Device | None = None
    gpu: int = 0

    def __str__(self) -> str:
        if self.engine == "sim" and self.device is not None:
            return f"sim:{self.device.id}"
        return f"gpu:{self.gpu}" if self.engine == "cuda" else "cpu"

    @property
    def backend(self) -> str:
        """ggml's name of the backend device of this target."""
        return "CPU" if self.engine == "cpu" else "CUDA0"

    @property
    def env(self) -> dict[str, str]:
        """The environment variables that make CUDA0 this target."""
        if self.engine == "sim" and self.device is not None:
            return {"FATTN_PROBE_DEVICE": self.device.spec()}
        return {"CUDA_VISIBLE_DEVICES": str(self.gpu)} if self.engine == "cuda" else {}


def parse_target(text: str, devices: Mapping[str, Device]) -> Target:
    """Parse one `--on` target; InputError with the allowed ones if it is invalid."""
    kind, colon, rest = text.strip().partition(":")
    match kind, colon, rest:
        case "sim", ":", identifier if identifier:
            return Target("sim", find_device(devices, identifier))
        case "gpu", "", "":
            return Target("cuda")
        case "gpu", ":", index if index.isascii() and index.isdigit():
            return Target("cuda", gpu=int(index))
        case "cpu", "", "":
            return Target("cpu")
    hint = f"; did you mean sim:{text}?" if text in devices else ""
    raise InputError(f"--on {text!r}: not a device{hint}; {ALLOWED}")


def parse_targets(text: str, devices: Mapping[str, Device]) -> tuple[Target, ...]:
    """Parse a comma-separated `--on` list; one InputError names all invalid targets."""
    targets, problems = [], []
    for word in text.split(","):
        try:
            targets.append(parse_target(word, devices))
        except InputError as error:
            problems.append(str(error))
    if problems:
        raise InputError("\n".join(dict.fromkeys(problems)))
    return tuple(targets)


def picklable(target: Target) -> Target:
    """The target with its device\'s sources in a plain dictionary, which can be pickled."""
    device = target.device
    return replace(target, device=replace(device, sources=dict(device.sources)) if device else None)
