"""The GPUs that can be simulated: the shipped catalogue and the user's own file."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fattn_probe.base import yaml_lines
from fattn_probe.base.errors import InputError

USER_FILE_VARIABLE = "FATTN_PROBE_DEVICES"
MAX_INT = 2**31 - 1
OTHER_FIELDS = ("id", "name", "sources", "gfx", "assumed")
TOP_KEYS = ("documents", "limits", "devices")
HIGHEST = {"totalGlobalMem": 2**63 - 1, "integrated": 1}
ID, CC, NAME = r"[a-z0-9][a-z0-9_-]*", r"\d{1,2}\.\d", r"[^\x00-\x1f\x7f]{1,255}"
GFX = re.compile(r"gfx(\d{1,2})([0-9a-f])([0-9a-f])")
"""An AMD architecture: major version, minor version, stepping."""
ZERO_ALLOWED = ("reservedSharedMemPerBlock", "integrated", "clockRate", "l2CacheSize")
Entry = dict[str, Any]


@dataclass(frozen=True)
class CatalogueFile:
    """A device file: its parsed data, and the line of each key."""

    path: Path
    parsed: yaml_lines.YamlDocument

    def table(self, section: str) -> Entry:
        """A section of the file; empty if it is missing."""
        return _table(self.parsed.value, section)

    def problem(self, key: tuple[str, ...], text: str) -> str:
        """`file:line: key: text`, with the line of the key, or of its nearest parent in the file."""
        return f"{self.path}:{self.parsed.line(key)}: {'.'.join(key)}: {text}"


def read(path: Path) -> CatalogueFile:
    """Read one file; InputError with the line for a missing file, a syntax error or a duplicate key."""
    return CatalogueFile(path, yaml_lines.read(path, "the devices"))


@dataclass(frozen=True)
class Device:
    """One GPU, with the field names of cudaDeviceProp: sizes in bytes, `clockRate` in kHz, `integrated` 0 or 1.

    `sources` maps a field to the document that states its value (fields from a user's file have none). `gfx` is an AMD
    GPU's architecture ("gfx90a"), empty for an NVIDIA GPU. `assumed` names the fields that are not known for this GPU:
    nominal memory, and values copied from the product that `like` names, unless the architecture fixes them.
    """

    id: str
    name: str
    major: int
    minor: int
    multiProcessorCount: int
    sharedMemPerBlock: int
    sharedMemPerBlockOptin: int
    sharedMemPerMultiprocessor: int
    reservedSharedMemPerBlock: int
    regsPerBlock: int
    regsPerMultiprocessor: int
    maxThreadsPerMultiProcessor: int
    maxBlocksPerMultiProcessor: int
    maxThreadsPerBlock: int
    warpSize: int
    totalGlobalMem: int
    l2CacheSize: int
    clockRate: int
    integrated: int
    sources: Mapping[str, str]
    gfx: str = ""
    assumed: tuple[str, ...] = ()

    @property
    def cc(self) -> str:
        """The compute capability with a dot: `8.9`, `12.1`; for an AMD GPU, the architecture: `gfx90a`."""
        return self.gfx or f"{self.major}.{self.minor}"

    @property
    def arch(self) -> str:
        """The architecture as its compiler writes it: `89`, `121` for nvcc, `gfx90a` for clang."""
        return self.gfx or f"{self.major}{self.minor}"

    @property
    def cuda_arch(self) -> int | None:
        """`__CUDA_ARCH__` of code compiled for this device only: 890, 1210; None for AMD, where the source sets it."""
        return None if self.gfx else 100 * self.major + 10 * self.minor

    @property
    def unit(self) -> str:
        """The vendor's name for a multiprocessor: SM; CU, AMD's compute unit; or WGP, a pair of CUs on RDNA GPUs."""
        return "SM" if not self.gfx else "CU" if self.gfx.startswith("gfx9") else "WGP"

    def properties(self) -> dict[str, int]:
        """The integer fields, under cudaDeviceProp's names."""
        return {name: getattr(self, name) for name in FIGURES}

    def spec(self) -> str:
        """The value of FATTN_PROBE_DEVICE: `major=8 minor=9 ... name=<text to the end of the line>`."""
        return " ".join([*(f"{name}={value}" for name, value in self.properties().items()), f"name={self.name}"])


FIGURES = tuple(field.name for field in fields(Device) if field.name not in OTHER_FIELDS)
GIVEN = tuple(name for name in FIGURES if name not in ("major", "minor"))
DEVICE_KEYS = ("name", "cc", "gfx", "like", *GIVEN, "sources", "assumed")
LIMIT_KEYS = (*GIVEN, "sources")


@cache
def shipped() -> Mapping[str, Device]:
    """The shipped catalogue: NVIDIA GPUs, then AMD GPUs."""
    return MappingProxyType({**_parse(_document("catalogue.yaml"), {}, {}), **_parse(_document("amd.yaml"), {}, {})})


def load_devices(user_file: Path | str | None = None) -> dict[str, Device]:
    """Every GPU by its id: the shipped ones, then those of `user_file`, or of $FATTN_PROBE_DEVICES.

    InputError with every problem and its line if a file is invalid.
    """
    chosen = user_file or os.environ.get(USER_FILE_VARIABLE)
    if not chosen:
        return dict(shipped())
    limits = {
        arch: entry
        for name in ("catalogue.yaml", "amd.yaml")
        for arch, entry in _limits(_document(name).table("limits")).items()
    }
    return {**shipped(), **_parse(read(Path(chosen)), shipped(), limits)}


def is_amd(arch: str) -> bool:
    """Whether this is an AMD architecture, such as `gfx90a`."""
    return GFX.fullmatch(arch) is not None


def arch_name(arch: str) -> str:
    """An architecture as its compiler's flags name it: `sm_89`, `gfx90a`."""
    return arch if is_amd(arch) else f"sm_{arch}"


def units_of(devices: Iterable[Device | None]) -> str:
    """The vendors' word for a multiprocessor of these GPUs: `SM`, or `SM/CU` if the GPUs are from both vendors."""
    return "/".join(dict.fromkeys("SM" if device is None else device.unit for device in devices))


def cc_order(cc: str) -> tuple[bool, float]:
    """Sort key for `Device.cc`: compute capabilities first, then AMD architectures, each from old to new."""
    return is_amd(cc), int(cc[3:], 16) if is_amd(cc) else float(cc)


@cache
def of_suites() -> Mapping[str, Device]:
    """The additional GPUs, with few SMs, on which shipped suites run."""
    return MappingProxyType(load_devices(Path(__file__).with_name("few-sms.yaml")))


def find_device(devices: Mapping[str, Device], identifier: str) -> Device:
    """One device by its id, or a shipped suite's device; InputError with the nearest ids if it is unknown."""
    if found := devices.get(identifier) or of_suites().get(identifier):
        return found
    raise InputError(f"no device {identifier!r}{nearest(identifier, devices)}; devices: {', '.join(devices)}")


def nearest(word: str, allowed: Mapping[str, object] | tuple[str, ...]) -> str:
    """The hint `; nearest: x` for a misspelt word, or an empty string."""
    lower = {item.lower(): item for item in allowed}
    close = get_close_matches(word.lower(), lower, n=1, cutoff=0.5)
    return f"; nearest: {lower[close[0]]}" if close else ""


@cache
def _document(name: str) -> CatalogueFile:
    with as_file(files("fattn_probe.cases.device") / name) as path:
        return read(path)


def _table(value: Any, key: str) -> Entry:  # noqa: ANN401 (YAML)
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def _sources(entry: Entry, titles: Mapping[str, str]) -> dict[str, str]:
    """The title of the source document, for each figure that has one."""
    listed = [(document, names) for document, names in _table(entry, "sources").items() if isinstance(names, list)]
    return {str(name): titles[document] for document, names in listed if document in titles for name in names}


def _limits(table: Entry) -> dict[str, Entry]:
    shared = _table(table, "every")
    return {
        cc: {**shared, **entry, "sources": _joined(_table(shared, "sources"), _table(entry, "sources"))}
        for cc, entry in table.items()
        if cc != "every" and isinstance(entry, dict)
    }


def _joined(first: Entry, second: Entry) -> Entry:
    lists = {key: value for key, value in first.items() if isinstance(value, list)}
    return {**first, **{key: lists.get(key, []) + value for key, value in second.items() if isinstance(value, list)}}


def _parse(document: CatalogueFile, known: Mapping[str, Device], limits: Mapping[str, Entry]) -> dict[str, Device]:
    problems = list(_problems(document, known))
    own = {cc: {**limits.get(cc, {}), **entry} for cc, entry in _limits(document.table("limits")).items()}
    devices, invalid = dict[str, Device](), set[str]()
    for identifier, entry in document.table("devices").items():
        complete = isinstance(entry, dict) and str(entry.get("like")) not in invalid  # otherwise already reported
        made = _device(document, identifier, entry, {**known, **devices}, {**limits, **own}) if complete else []
        if isinstance(made, Device):
            devices[identifier] = made
        else:
            invalid.add(identifier)
            problems += made
    if problems:
        raise InputError("\n".join(problems))
    return devices


def _problems(document: CatalogueFile, known: Mapping[str, Device]) -> Iterator[str]:
    """Problems with keys, types, ranges and names, found without looking at other entries."""
    if not isinstance(document.parsed.value, dict) or not document.table("devices"):
        yield f"{document.path}:1: devices: missing; a device file is `devices: {{id: {{like: rtx4070, ...}}}}`"
        return
    yield from _unknown(document, (), document.parsed.value, TOP_KEYS)
    for section, keys in (("limits", LIMIT_KEYS), ("devices", DEVICE_KEYS)):
        for identifier, entry in document.table(section).items():
            key = (section, identifier)
            if section == "devices" and identifier in known:
                yield document.problem(key, "this id is in the shipped catalogue; choose another")
            if isinstance(entry, dict):
                yield from _unknown(document, key, entry, keys)
                yield from _wrong_values(document, key, entry)
            else:
                yield document.problem(key, f"{entry!r}, expected a mapping of {', '.join(keys)}")
    # Ids must fit in `sim:ID`, compute capabilities in `sm_XY`, and names on one line.
    arch = rf"{CC}|{GFX.pattern}"
    for section, pattern, form in (("devices", ID, "lower-case letters, digits, - and _"), ("limits", arch, '"8.9"')):
        for name in document.table(section):
            if name != "every" and not re.fullmatch(pattern, name):
                yield document.problem((section, name), f"expected {form}")
    for identifier, entry in document.table("devices").items():
        name = entry.get("name", "-") if isinstance(entry, dict) else "-"
        if not isinstance(name, str) or not re.fullmatch(NAME, name):
            said = f"{name!r}, expected 1 to 255 printable characters on one line"
            yield document.problem(("devices", identifier, "name"), said)


def _unknown(document: CatalogueFile, key: tuple[str, ...], entry: Entry, allowed: tuple[str, ...]) -> Iterator[str]:
    for name in entry:
        if name not in allowed:
            said = f"unknown key{nearest(name, allowed)}; allowed: {', '.join(allowed)}"
            yield document.problem((*key, name), said)


def _wrong_values(document: CatalogueFile, key: tuple[str, ...], entry: Entry) -> Iterator[str]:
    for name in (name for name in entry if name in GIVEN):
        value, low, high = entry[name], 0 if name in ZERO_ALLOWED else 1, HIGHEST.get(name, MAX_INT)
        whole = isinstance(value, int) and (name == "integrated" or not isinstance(value, bool))
        if not whole or not low <= value <= high:
            yield document.problem((*key, name), f"{value!r}, expected an integer from {low} to {high}")
    named = entry.get("assumed", [])
    if not isinstance(named, list) or not {*map(str, named)} <= {*GIVEN}:
        yield document.problem((*key, "assumed"), f"{named!r}, expected a list of figures: {', '.join(GIVEN)}")


def _device(
    document: CatalogueFile, identifier: str, entry: Entry, known: Mapping[str, Device], limits_of: dict[str, Entry]
) -> Device | list[str]:
    """A device, or problems that `_problems` does not find; its own figures override `like` and the architecture."""
    key = ("devices", identifier)
    like = entry.get("like")
    base = known.get(str(like))
    if like is not None and base is None:
        return [document.problem((*key, "like"), f"no device {like!r}{nearest(str(like), known)}")]
    given = "gfx" if "gfx" in entry or (base and base.gfx) else "cc"
    arch = str(entry[given]) if given in entry else base.cc if base else "missing"
    if arch not in limits_of:
        allowed = ", ".join(f'"{each}"' for each in limits_of if is_amd(each) == (given == "gfx"))
        return [document.problem((*key, given), f"{arch}, allowed: {allowed}")]
    limits = limits_of[arch]
    inherited: Entry = {**base.properties(), "name": base.name} if base else {"integrated": 0}
    later = limits if given in entry else {}
    merged: Entry = {**limits, **inherited, **later, **entry}
    missing = [name for name in ("name", *GIVEN) if name not in merged]
    if missing or any(_wrong_values(document, key, merged)):
        return [document.problem(key, f"missing {', '.join(missing)}")] if missing else []
    titles = {name: str(text) for name, text in document.table("documents").items()}
    sourced = _sources(entry, titles)
    taken = {name: text for name, text in (base.sources if base else {}).items() if name not in {**entry, **later}}
    sources = {**_sources(limits, titles), **taken, **sourced}
    kept = {name: text for name, text in sources.items() if name not in entry or name in sourced}
    copied = [name for name in GIVEN if base and name not in {**entry, **later}]
    not_own = {*map(str, entry.get("assumed", [])), *(name for name in copied if merged[name] != limits.get(name))}
    amd = GFX.fullmatch(arch)
    major, minor = map(int, amd.groups()[:2] if amd else arch.split("."))
    return Device(
        identifier,
        str(merged["name"]),
        major=major,
        minor=minor,
        **{name: int(merged[name]) for name in GIVEN},
        sources=MappingProxyType(kept),
        gfx=arch if amd else "",
        assumed=tuple(name for name in GIVEN if name in not_own),
    )
