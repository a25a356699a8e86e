"""The records of the history: runs, their parts, their results, and the cases."""

import hashlib
import json
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from fattn_probe.compare.judge.bitwise import Check
from fattn_probe.compare.judge.checks import Checks
from fattn_probe.compare.judge.finding import Finding
from fattn_probe.compare.judge.known import named
from fattn_probe.compare.judge.sampled import Sampled
from fattn_probe.errors import InputError
from fattn_probe.launch.record import LaunchRecord, parse_launches
from fattn_probe.op import Op, Params, Sizes
from fattn_probe.op.op import default_scale
from fattn_probe.regress.packed_map import PackedMap
from fattn_probe.scenario import Case


@dataclass(frozen=True)
class Identity:
    """The origin of a run's results.

    `device` is the GPU's name or the simulator's (`sim:h200`), `cc` its compute capability, `driver` empty on the
    simulator, `build_number` that of llama.cpp, `version` fattn-probe's.
    """

    machine: str
    device: str
    cc: str
    driver: str
    engine: str
    flavour: str
    source: str
    build_number: str
    patches: str
    version: str

    @property
    def line(self) -> str:
        """The name shared by the nightly runs that are compared with each other.

        A simulated GPU is the same on every machine; a real GPU's line includes the machine, because of times.
        """
        place = self.machine if self.engine == "cuda" else ""
        return "/".join((self.engine, self.device, self.cc, self.flavour, place))

    @property
    def tree(self) -> str:
        """The source and its patches: `pypi:xllamacpp==2026.10.11549 with fault-stream-k-seam`."""
        return f"{self.source} with {', '.join(self.patches.split())}" if self.patches else self.source


@dataclass(frozen=True)
class Result:
    """The result of one case.

    `digest` is that of the op and its inputs, `output` the sha256 of dst, `seconds` the time of each repeat.
    `launches` is the text of the launch records, one JSON line each; `error_map` is for a wrong output. `warning` is
    about a passing but inaccurate output; `missing` names checks that could not be made. `sampled` is None if all rows
    were checked. `finding` is the fault that ended a run without an output. `known` is the id of the known defect of
    upstream's that a failure is; empty if it is none. `diagnosis` is the first cause of a wrong output, in words.
    """

    name: str
    digest: str
    status: str
    reason: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    output: str | None = None
    launches: str = ""
    seconds: tuple[float, ...] = ()
    failure: str = ""
    error_map: PackedMap | None = None
    warning: str = ""
    missing: str = ""
    sampled: Sampled | None = None
    checks: tuple[Check, ...] = ()
    finding: Finding | None = None
    known: str = ""
    diagnosis: str = ""

    @property
    def time(self) -> float | None:
        """The median time of the repeats."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def kernels(self) -> tuple[LaunchRecord, ...]:
        """The launch records."""
        return parse_launches(self.launches)

    @property
    def explained(self) -> str:
        """The reason, which begins with the known defect if the failure is one, and otherwise ends with the cause."""
        if self.known or not self.diagnosis:
            return named(self.known, self.reason)
        return f"{self.reason}; cause: {self.diagnosis}"


class Cell(NamedTuple):
    """One result for plots: `ratio` is its largest error as a share of the bound, `time` is in seconds."""

    run: int
    name: str
    digest: str
    status: str
    ratio: float | None
    nmse: float | None
    time: float | None


@dataclass(frozen=True)
class StoredCase:
    """A case as the history stores it; `mask` is the kind of its mask, `none` without one."""

    name: str
    digest: str
    scenario: str
    mask: str
    op: Op

    @classmethod
    def of(cls, case: Case) -> "StoredCase":
        """The part of a case that the history stores."""
        return cls(case.name, case.digest, case.scenario, case.mask_kind, case.op)

    def to_json(self) -> str:
        """The case as JSON, for `from_json`."""
        return json.dumps({**vars(self), "op": self.op.to_json()})

    @classmethod
    def from_json(cls, text: str) -> "StoredCase":
        """A case from the history's JSON."""
        plain = json.loads(text)
        return cls(**plain | {"op": Op.from_json(plain["op"])})


def whole_op(text: str) -> str:
    """Convert a case of a history before version 3, which stored only its sizes, to JSON with the op.

    Its tensors are assumed to be contiguous and its scale to be the default, since neither was stored.
    """
    old = json.loads(text)
    sizes = Sizes(**{name: old[name] for name in Sizes.__dataclass_fields__})
    floats = {name: old[name] for name in ("max_bias", "logit_softcap", "n_kv_max")}
    op = Op.contiguous(
        sizes,
        Params(default_scale(sizes.hsk), **floats),
        (old["type_K"], old["type_V"]),
        mask=old["mask"] != "none",
        sinks=old["sinks"],
    )
    return StoredCase(old["name"], old["digest"], old["scenario"], old["mask"], op).to_json()


@dataclass(frozen=True)
class Shard:
    """Shard `number` (from 1) of `of`: a case's digest alone determines its shard."""

    number: int = 1
    of: int = 1

    def has(self, digest: str) -> bool:
        """Whether a case with this digest belongs to the shard."""
        return int(hashlib.sha256(digest.encode()).hexdigest()[:12], 16) % self.of == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


ALL = Shard()
"""The shard with every case."""


def parse_shard(text: str) -> Shard:
    """Parse a shard such as `2/8`; InputError for anything else."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise InputError(f"--shard {text!r}: not a shard, allowed: K/N with 1 <= K <= N, such as 2/8")
    return Shard(int(found[1]), int(found[2]))


@dataclass(frozen=True)
class Part:
    """One process's part of a run: its shard, and the run's name (`night`) if other processes share the run."""

    shard: Shard = ALL
    night: str = ""

    def of(self, identity: Identity) -> Identity:
        """The identity of the whole run, whose shards may run on several machines."""
        return replace(identity, machine="shards") if self.shard.of > 1 else identity

    def uid(self, identity: Identity, suite: str) -> str | None:
        """The run's uid, equal for all shards of one night, line and source; None for an unshared run."""
        if not self.night:
            return None
        told = (self.night, suite, identity.line, identity.source, identity.build_number, identity.patches)
        return hashlib.sha256("\0".join((*told, identity.version)).encode()).hexdigest()[:32]


WHOLE = Part()
"""The whole of an unshared run."""


@dataclass(frozen=True)
class Settings:
    """How a run judged its cases (None if unknown), and its filter of names."""

    checks: Checks | None = None
    only: str = ""


@dataclass(frozen=True)
class Run:
    """One run in the history; `ended` is None if it is running, was killed, or lacks a shard.

    `planned` is the number of cases of the shards known so far; 0 if unknown.
    """

    id: int
    uid: str
    identity: Identity
    suite: str
    started: str
    ended: str | None
    planned: int = 0
    settings: Settings = Settings()
