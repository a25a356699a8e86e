"""The GPUs that can be simulated: the shipped catalogue and the user's own file."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from types import MappingProxyType

from fattn_probe.base import yaml_lines
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import read_text

Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]
USER_FILE_VARIABLE = "FATTN_PROBE_DEVICES"
MAX_INT = 2**31 - 1
OTHER_FIELDS = ("id", "name", "sources", "gfx", "assumed")
TOP_KEYS = ("documents", "limits", "devices")
HIGHEST = {"totalGlobalMem": 2**63 - 1, "integrated": 1}
ID, CC, NAME = r"[a-z0-9][a-z0-9_-]*", r"\d{1,2}\.\d", r"[^\x00-\x1f\x7f]{1,255}"
ZERO_ALLOWED = ("reservedSharedMemPerBlock", "integrated", "clockRate", "l2CacheSize")
Entry = dict[str, Value]


@dataclass(frozen=True)
class CatalogueFile:
    """A file: its plain data, and the line of each key."""

    path: Path
    data: Value
    parsed: yaml_lines.YamlDocument

    def where(self, *key: str) -> str:
        """`file:line` of a key, or of its nearest parent in the file."""
        return f"{self.path}:{self.parsed.line(key)}"


def read(path: Path) -> CatalogueFile:
    """Read one file; InputError with the line for a missing file, a syntax error or a duplicate key."""
    parsed = yaml_lines.parse(read_text(path, "the devices"), str(path))
    if parsed.mistakes:
        raise InputError("\n".join(f"{path}:{mistake.line}: {mistake.text}" for mistake in parsed.mistakes))
    return CatalogueFile(path, parsed.value, parsed)


@dataclass(frozen=True)
class Device:
    """One GPU in the names of cudaDeviceProp: sizes in bytes, `clockRate` in kHz, `integrated` 0 or 1.

    `sources` maps a field to the document with its figure (none for fields from a user's file). `gfx` is the name of an
    AMD GPU's architecture, empty for NVIDIA's. `assumed` are figures not known for this GPU: nominal memory, and
    figures copied from the product after `like`, other than the limits of the compute capability.
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
        """The compute capability with a dot: `8.9`, `12.1`."""
        return f"{self.major}.{self.minor}"

    @property
    def arch(self) -> str:
        """The compute capability as nvcc writes it: `89`, `121`."""
        return f"{self.major}{self.minor}"

    @property
    def cuda_arch(self) -> int:
        """`__CUDA_ARCH__` of code compiled for just this device: 890, 1210."""
        return 100 * self.major + 10 * self.minor

    def properties(self) -> dict[str, int]:
        """The integer fields, in cudaDeviceProp's names."""
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
    """The shipped catalogue of NVIDIA GPUs."""
    return MappingProxyType(_parse(_document("catalogue.yaml"), {}, {}))


@cache
def amd_devices() -> Mapping[str, Device]:
    """The shipped AMD GPUs: for HIP programs, not for llama.cpp's kernels."""
    return MappingProxyType(_parse(_document("amd.yaml"), {}, {}))


def load_devices(user_file: Path | str | None = None) -> dict[str, Device]:
    """Every NVIDIA GPU by its id: the shipped ones, then those of `user_file`, or of $FATTN_PROBE_DEVICES.

    InputError with every problem and its line if a file is invalid.
    """
    chosen = user_file or os.environ.get(USER_FILE_VARIABLE)
    if not chosen:
        return dict(shipped())
    limits = _limits(_table(_document("catalogue.yaml").data, "limits"))
    return {**shipped(), **_parse(read(Path(chosen)), shipped(), limits)}


def every_device(user_file: Path | str | None = None) -> dict[str, Device]:
    """Every GPU by its id, including AMD GPUs."""
    return {**load_devices(user_file), **amd_devices()}


def find_device(devices: Mapping[str, Device], identifier: str) -> Device:
    """One device by its id; InputError with the nearest ids if it is unknown."""
    if identifier in devices:
        return devices[identifier]
    if identifier in amd_devices():
        raise InputError(f"sim:{identifier} is an AMD GPU: it is for HIP programs (`fattn-probe program`)")
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


def _table(value: Value, key: str) -> dict[str, Value]:
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def _listed(entry: Entry, key: str) -> tuple[str, ...]:
    value = entry.get(key)
    return tuple(map(str, value)) if isinstance(value, list) else ()


@dataclass(frozen=True)
class _Known:
    """The definitions that an entry may refer to: devices by id, limits by compute capability, titles of documents."""

    devices: Mapping[str, Device]
    limits: Mapping[str, Entry]
    titles: Mapping[str, str]

    def sources(self, entry: Entry) -> dict[str, str]:
        """The document of each figure for which an entry gives a source."""
        listed = _table(entry, "sources").items()
        return {
            str(name): self.titles[document]
            for document, names in listed
            if document in self.titles and isinstance(names, list)
            for name in names
        }


def _limits(table: dict[str, Value]) -> dict[str, Entry]:
    every = table.get("every")
    shared: Entry = every if isinstance(every, dict) else {}
    return {
        cc: {**shared, **entry, "sources": _joined(_table(shared, "sources"), _table(entry, "sources"))}
        for cc, entry in table.items()
        if isinstance(entry, dict) and cc != "every"
    }


def _joined(first: Entry, second: Entry) -> Entry:
    lists = {key: value for key, value in first.items() if isinstance(value, list)}
    return {**first, **{key: lists.get(key, []) + value for key, value in second.items() if isinstance(value, list)}}


def _parse(document: CatalogueFile, known: Mapping[str, Device], limits: Mapping[str, Entry]) -> dict[str, Device]:
    problems = _check(document, known)
    if problems:
        raise InputError("\n".join(problems))
    own = {cc: {**limits.get(cc, {}), **entry} for cc, entry in _limits(_table(document.data, "limits")).items()}
    titles = {key: str(text) for key, text in _table(document.data, "documents").items()}
    devices: dict[str, Device] = {}
    for identifier, entry in _table(document.data, "devices").items():
        made = _device(document, identifier, entry, _Known({**known, **devices}, {**limits, **own}, titles))
        if isinstance(made, Device):
            devices[identifier] = made
        else:
            problems.append(made)
    if problems:
        raise InputError("\n".join(problems))
    return devices


def _check(document: CatalogueFile, known: Mapping[str, Device]) -> list[str]:
    """Problems of keys, types and ranges, before entries are combined."""
    if not isinstance(document.data, dict) or not _table(document.data, "devices"):
        return [f"{document.path}:1: devices: missing; a device file is `devices: {{id: {{like: rtx4070, ...}}}}`"]
    problems = _unknown(document, (), document.data, TOP_KEYS)
    for section, keys in (("limits", LIMIT_KEYS), ("devices", DEVICE_KEYS)):
        for identifier, entry in _table(document.data, section).items():
            where = document.where(section, identifier)
            if section == "devices" and identifier in known:
                problems.append(f"{where}: devices.{identifier}: this id is in the shipped catalogue; choose another")
            if isinstance(entry, dict):
                problems += _unknown(document, (section, identifier), entry, keys)
                problems += _wrong_values(document, (section, identifier), entry)
            else:
                problems.append(f"{where}: {section}.{identifier}: {entry!r}, expected a mapping of {', '.join(keys)}")
    return problems + _wrong_names(document)


def _unknown(document: CatalogueFile, key: tuple[str, ...], entry: Entry, allowed: tuple[str, ...]) -> list[str]:
    return [
        f"{document.where(*key, name)}: {'.'.join((*key, name))}: unknown key"
        f"{nearest(name, allowed)}; allowed: {', '.join(allowed)}"
        for name in entry
        if name not in allowed
    ]


def _wrong_values(document: CatalogueFile, key: tuple[str, ...], entry: Entry) -> list[str]:
    problems = []
    for name in (name for name in entry if name in GIVEN):
        value, low = entry[name], 0 if name in ZERO_ALLOWED else 1
        high = HIGHEST.get(name, MAX_INT)
        whole = isinstance(value, int) and (name == "integrated" or not isinstance(value, bool))
        if not whole or not low <= _integer(value) <= high:
            place = f"{document.where(*key, name)}: {'.'.join((*key, name))}"
            problems.append(f"{place}: {value!r}, expected an integer from {low} to {high}")
    named = entry.get("assumed", [])
    if not isinstance(named, list) or not {*map(str, named)} <= {*GIVEN}:
        place = f"{document.where(*key, 'assumed')}: {'.'.join((*key, 'assumed'))}"
        problems.append(f"{place}: {named!r}, expected a list of figures: {', '.join(GIVEN)}")
    return problems


def _wrong_names(document: CatalogueFile) -> list[str]:
    """Check that names fit their use: ids in `sim:ID`, compute capabilities in `sm_XY`, names on one line."""
    problems = []
    for section, pattern, form in (("devices", ID, "lower-case letters, digits, - and _"), ("limits", CC, '"8.9"')):
        for key in _table(document.data, section):
            if key != "every" and not re.fullmatch(pattern, key):
                problems.append(f"{document.where(section, key)}: {section}.{key}: expected {form}")
    for key, entry in _table(document.data, "devices").items():
        name = entry.get("name", "-") if isinstance(entry, dict) else "-"
        if not isinstance(name, str) or not re.fullmatch(NAME, name):
            place = f"{document.where('devices', key, 'name')}: devices.{key}.name"
            problems.append(f"{place}: {name!r}, expected 1 to 255 printable characters in one line")
    return problems


def _device(document: CatalogueFile, identifier: str, entry: Value, known: _Known) -> Device | str:
    """A device, or the problem with its entry; its own figures override those of `like` and of its cc."""
    entry = entry if isinstance(entry, dict) else {}
    place = f"devices.{identifier}"
    like = entry.get("like")
    base = known.devices.get(str(like))
    if like is not None and base is None:
        hint = nearest(str(like), known.devices)
        return f"{document.where('devices', identifier, 'like')}: {place}.like: no device {like!r}{hint}"
    cc = str(entry["cc"]) if "cc" in entry else base.cc if base else "missing"
    if cc not in known.limits:
        allowed = ", ".join(f'"{each}"' for each in known.limits)
        return f"{document.where('devices', identifier, 'cc')}: {place}.cc: {cc}, allowed: {allowed}"
    limits = known.limits[cc]
    inherited: Entry = {**base.properties(), "name": base.name} if base else {"integrated": 0}
    later = limits if "cc" in entry else {}
    merged: Entry = {**limits, **inherited, **later, **entry}
    missing = [name for name in ("name", *GIVEN) if name not in merged]
    if missing:
        return f"{document.where('devices', identifier)}: {place}: missing {', '.join(missing)}"
    major, minor = (int(part) for part in cc.split("."))
    figures = {**{name: _integer(merged[name]) for name in GIVEN}, "major": major, "minor": minor}
    taken = {name: text for name, text in (base.sources if base else {}).items() if name not in {**entry, **later}}
    sources = {**known.sources(limits), **taken, **known.sources(entry)}
    own = {name for name in entry if name not in known.sources(entry)}
    kept = {name: text for name, text in sources.items() if name not in own}
    gfx = str(entry.get("gfx", base.gfx if base else ""))
    copied = [name for name in GIVEN if base and name not in {**entry, **later}]
    not_own = {*_listed(entry, "assumed"), *(name for name in copied if merged[name] != limits.get(name))}
    assumed = tuple(name for name in GIVEN if name in not_own)
    name, documents = str(merged["name"]), MappingProxyType(kept)
    return Device(identifier, name, sources=documents, gfx=gfx, assumed=assumed, **figures)


def _integer(value: Value) -> int:
    return int(value) if isinstance(value, int) else 0
