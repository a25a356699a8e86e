"""The corpus of historic faults: patches that restore old faults of llama.cpp, and what must catch each of them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from fattn_probe.base.errors import InputError
from fattn_probe.cases.shipped import files, find
from fattn_probe.llama.source.patches import FAULT_KEYS, Patch, load

Catch = Literal["verdict", "crash", "check", "support", "kernel"]
INLINE = "inline"
FAMILIES = (
    "32-bit products",
    "tail and bounds",
    "skipping masked tiles",
    "GQA and stream-K",
    "barriers and races",
    "dispatch",
    "f16 range",
    "strides mistaken for shapes",
    "swizzle and cp.async",
    "sinks, ALiBi, softcap",
    "latent attention",
    "quantised K and V",
    "sparse gather",
    "waves of 64",
    "AMD's matrix layouts",
)
_NAME = re.compile(r"(?P<number>\d+)-[a-z0-9_]+(-[a-z0-9_]+)*")
_REFERENCE = re.compile(r"Modelled on [\w.-]+/[\w.-]+#(?P<number>\d+)\.$")


@dataclass(frozen=True)
class Shown:
    """A case that exposes a fault: a scenario file and the id of a simulated GPU."""

    scenario: Path
    device: str


@dataclass(frozen=True)
class HistoricFault:
    """One file of the corpus; docs/guide/detection.md explains its fields, all of which `patch.value` returns."""

    patch: Patch
    number: int
    family: str
    shows: tuple[Shown, ...]
    catch: Catch
    diagnosis: tuple[str, ...]

    @property
    def name(self) -> str:
        """The fault's name for `--patch`."""
        return f"faults/{self.patch.name}"

    @property
    def wrong(self) -> str:
        """A description of the fault: the header's text without the reference at its end."""
        return _REFERENCE.sub("", self.patch.about).strip()


def corpus() -> list[HistoricFault]:
    """Every fault of the shipped corpus, ordered by number."""
    return sorted((read_fault(path) for path in files("fault")), key=lambda fault: (fault.number, fault.patch.name))


def read_fault(path: Path) -> HistoricFault:
    """Read a patch whose header has all fields of a fault; InputError names a missing or wrong field."""
    patch = load(path)
    named, reference = _NAME.fullmatch(patch.name), _REFERENCE.search(patch.about)
    if not named or not reference or named["number"] != reference["number"]:
        raise InputError(f"{path}: name it NUMBER-SLUG.patch, and end its text with `Modelled on OWNER/NAME#NUMBER.`")
    for key in FAULT_KEYS:
        if not patch.value(key):
            raise InputError(f"{path}: the header has no `# {key}:`; it needs {', '.join(FAULT_KEYS)}")
    for key, known in (("family", FAMILIES), ("catch", get_args(Catch))):
        if patch.value(key) not in known:
            raise InputError(f"{path}: {key}: {patch.value(key)!r} is not one of {', '.join(known)}")
    return HistoricFault(
        patch,
        int(named["number"]),
        patch.value("family"),
        tuple(shown(path, text.strip()) for text in patch.value("shows").split(",")),
        cast(Catch, patch.value("catch")),
        tuple(kind.strip() for kind in patch.value("diagnosis").split(",")),
    )


def shown(path: Path, text: str) -> Shown:
    """Parse `SCENARIO on DEVICE`; the scenario `inline` is the YAML file beside the patch."""
    scenario, on, device = text.partition(" on ")
    if not on or not device:
        raise InputError(f"{path}: shows: {text!r} is not `SCENARIO on DEVICE`")
    return Shown(path.with_suffix(".yaml") if scenario == INLINE else find("scenario", scenario), device)
