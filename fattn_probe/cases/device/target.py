"""Targets, the devices that can run a case: `sim:ID`, `gpu`, `gpu:N` or `cpu`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device.catalogue import Device, find_device

MUSA = re.compile("musa|mtt", re.IGNORECASE)
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
        """ggml's name for this target's backend device."""
        if self.engine == "cpu":
            return "CPU"
        return "ROCm0" if self.device is not None and self.device.gfx else "CUDA0"

    @property
    def env(self) -> dict[str, str]:
        """The environment variables that make this target the first GPU."""
        if self.engine == "sim" and self.device is not None:
            return {"FATTN_PROBE_DEVICE": self.device.spec()}
        return {"CUDA_VISIBLE_DEVICES": str(self.gpu)} if self.engine == "cuda" else {}


def parse_target(text: str, devices: Mapping[str, Device], given: str = "--on") -> Target:
    """Parse one target; if it is invalid, InputError with the flag or key (`given`) and the allowed targets."""
    if MUSA.search(text):
        raise InputError(f"{given} {text!r}: MUSA (Moore Threads) is not simulated, only NVIDIA and AMD GPUs")
    kind, colon, rest = text.strip().partition(":")
    match kind, colon, rest:
        case "sim", ":", identifier if identifier:
            try:
                return Target("sim", find_device(devices, identifier))
            except InputError as error:
                raise InputError(f"{given} {text!r}: {error}") from None
        case "gpu", "", "":
            return Target("cuda")
        case "gpu", ":", index if index.isascii() and index.isdigit():
            return Target("cuda", gpu=int(index))
        case "cpu", "", "":
            return Target("cpu")
    hint = f"; did you mean sim:{text}?" if text in devices else ""
    raise InputError(f"{given} {text!r}: not a device{hint}; {ALLOWED}")


def parse_targets(text: str, devices: Mapping[str, Device], given: str = "--on") -> tuple[Target, ...]:
    """Parse a comma-separated list of targets; one InputError names all invalid ones."""
    targets, problems = [], []
    for word in text.split(","):
        try:
            targets.append(parse_target(word, devices, given))
        except InputError as error:
            problems.append(str(error))
    if problems:
        raise InputError("\n".join(dict.fromkeys(problems)))
    return tuple(targets)


def picklable(target: Target) -> Target:
    """The target with its device's sources in a plain dictionary, so that it can be pickled."""
    device = target.device
    return replace(target, device=replace(device, sources=dict(device.sources)) if device else None)
