"""What the history keeps: runs, their parts, their results, and what the cases are."""

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
from fattn_probe.compare.judge.sampled import Sampled
from fattn_probe.errors import InputError
from fattn_probe.launch.record import LaunchRecord, parse_launches
from fattn_probe.op import Op, Params, Sizes
from fattn_probe.op.op import default_scale
from fattn_probe.regress.packed_map import PackedMap
from fattn_probe.scenario import Case


@dataclass(frozen=True)
class Identity:
    """Where a run's results come from.

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
        """What stays the same from one nightly run to the next: results are compared along it.

        A simulated GPU is the same everywhere; of a real one the machine counts, since times do.
        """
        place = self.machine if self.engine == "cuda" else ""
        return "/".join((self.engine, self.device, self.cc, self.flavour, place))


@dataclass(frozen=True)
class Result:
    """What one case gave; `digest` is that of the op and its inputs, `output` the sha256 of dst, `seconds` the repeats.

    `launches` is the text of the launch records, one JSON line each; `error_map` the map of errors of a wrong output.
    `warning` says how inaccurate an output is that passes, `missing` what it could not be held against; `sampled` is
    None where all rows were checked. `finding` is what ended a run without an output.
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

    @property
    def time(self) -> float | None:
        """The median of the repeats."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def kernels(self) -> tuple[LaunchRecord, ...]:
        """The launch records."""
        return parse_launches(self.launches)


class Cell(NamedTuple):
    """What a plot needs of one result: `ratio` is its largest error as a share of the bound, `time` in seconds."""

    run: int
    name: str
    digest: str
    status: str
    ratio: float | None
    nmse: float | None
    time: float | None


@dataclass(frozen=True)
class StoredCase:
    """A case as the history keeps it; `mask` is the kind of its mask, `none` without one."""

    name: str
    digest: str
    scenario: str
    mask: str
    op: Op

    @classmethod
    def of(cls, case: Case) -> "StoredCase":
        """The part of a case that the history keeps."""
        return cls(case.name, case.digest, case.scenario, case.mask.kind, case.op)

    def to_json(self) -> str:
        """The case as JSON, which `from_json` reads."""
        return json.dumps({**vars(self), "op": self.op.to_json()})

    @classmethod
    def from_json(cls, text: str) -> "StoredCase":
        """A case from the history's JSON."""
        plain = json.loads(text)
        return cls(**plain | {"op": Op.from_json(plain["op"])})


def whole_op(text: str) -> str:
    """A case as histories before version 3 kept it, with its sizes only, as JSON that holds the op.

    Its tensors are taken to be contiguous, its scale to be the default: neither was kept.
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
    """The `number`th of `of` shards, from 1: each case is in one, by its digest, whatever else is in the suite."""

    number: int = 1
    of: int = 1

    def has(self, digest: str) -> bool:
        """Whether a case of this digest is in it."""
        return int(hashlib.sha256(digest.encode()).hexdigest()[:12], 16) % self.of == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


ALL = Shard()
"""Every case."""


def parse_shard(text: str) -> Shard:
    """`2/8`; InputError for anything that is no shard."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise InputError(f"--shard {text!r}: not a shard, allowed: K/N with 1 <= K <= N, such as 2/8")
    return Shard(int(found[1]), int(found[2]))


@dataclass(frozen=True)
class Part:
    """What one process does of a run: its shard, of a run that others may work on too where it has a name."""

    shard: Shard = ALL
    night: str = ""

    def of(self, identity: Identity) -> Identity:
        """The identity of the run that this is a part of: shards may run on several machines."""
        return replace(identity, machine="shards") if self.shard.of > 1 else identity

    def uid(self, identity: Identity, suite: str) -> str | None:
        """The run's uid, the same for all shards of one night, line and source; None for a run of its own."""
        if not self.night:
            return None
        told = (self.night, suite, identity.line, identity.source, identity.build_number, identity.patches)
        return hashlib.sha256("\0".join((*told, identity.version)).encode()).hexdigest()[:32]


WHOLE = Part()
"""All of a run of its own."""


@dataclass(frozen=True)
class Settings:
    """How a run judged its cases, None if that is unknown, and the filter of names that it was given."""

    checks: Checks | None = None
    only: str = ""


@dataclass(frozen=True)
class Run:
    """One run in the history; `ended` is None while it goes on, and of a run that was killed or lacks a shard.

    `planned` is the number of cases that the shards known so far were to run; 0 where that was not kept.
    """

    id: int
    uid: str
    identity: Identity
    suite: str
    started: str
    ended: str | None
    planned: int = 0
    settings: Settings = Settings()
