"""The records of the history: runs, their parts, their results with error maps, and the cases."""

import functools
import json
import re
import statistics
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from fattn_probe.base.arrays import F64, Bytes
from fattn_probe.base.digest import short
from fattn_probe.base.documents import Document
from fattn_probe.base.errors import InputError
from fattn_probe.base.fingerprint import FINGERPRINT, Fingerprint
from fattn_probe.cases.op import Op, Params, Sizes
from fattn_probe.cases.op.op import default_scale
from fattn_probe.cases.scenario import Case
from fattn_probe.llama.launch.record import LaunchRecord, parse_launches
from fattn_probe.machine.run.frames import short_path
from fattn_probe.machine.run.outcome import Finding
from fattn_probe.verdict.judge.bitwise import Check
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.judge.judgement import Judgement, attention_kernel
from fattn_probe.verdict.judge.known import named
from fattn_probe.verdict.measure.sampled import Sampled
from fattn_probe.verdict.present.error_map import error_maps, shrunk

COMPILE = "compile"
COMPILER = re.compile(r"^(?P<file>[^\s:(]+)[:(](?P<line>\d+)(?::\d+|\))?: error: (?P<message>.*)$", re.MULTILINE)
"""An error from g++ (`FILE:LINE:COLUMN: error: ...`) or nvcc (`FILE(LINE): error: ...`)."""
MOST = 64
LEAST, DECADES = 0.1, 6.0
NOT_FINITE = 255


@dataclass(frozen=True)
class PackedMap:
    """An error map, head x query: the largest error in each cell, in units of its row's expected error.

    `packed` is zlib-compressed, with one byte for each of `rows` x `columns` cells: 0 is below `LEAST`, 255 is not
    finite, and the values between cover `DECADES` decades.
    """

    heads: int
    queries: int
    rows: int
    columns: int
    packed: bytes

    @property
    def levels(self) -> Bytes:
        """The bytes, (rows, columns)."""
        return np.frombuffer(zlib.decompress(self.packed), np.uint8).reshape(self.rows, self.columns)

    @property
    def values(self) -> F64:
        """The errors, to the precision of a byte; infinite where an error is not finite."""
        levels = self.levels.astype(np.float64)
        known = LEAST * 10 ** ((levels - 0.5) / 253 * DECADES)  # the middle of a byte's range
        return np.where(levels == 0, 0.0, np.where(levels == NOT_FINITE, np.inf, known))


def packed_map_of(judgement: Judgement) -> PackedMap | None:
    """The error map of a wrong output; None if not all of the output was checked."""
    deviation = judgement.verdict.deviation
    if judgement.dst is None or deviation is None or judgement.verdict.status != "fail":
        return None
    found, _ = error_maps(judgement.dst, deviation)
    heads, queries = found.values.shape
    return packed(shrunk(found.values, MOST, MOST), heads, queries)


def packed(values: F64, heads: int, queries: int) -> PackedMap:
    """Pack a map into at most 64 x 64 cells."""
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = 1 + np.floor(253 * np.log10(values / LEAST) / DECADES)
    levels = np.where(values < LEAST, 0, np.clip(steps, 1, NOT_FINITE - 1))
    levels = np.where(np.isfinite(values), levels, NOT_FINITE).astype(np.uint8)
    return PackedMap(heads, queries, len(levels), levels.shape[1], zlib.compress(levels.tobytes(), 9))


ORDER = ("pass", "fail", "unjudged", "unsupported", "lost")
"""The statuses of a result, in the order in which counts list them."""


@dataclass(frozen=True)
class Identity:
    """The origin of a run's results.

    `device` is the name of the GPU, real or simulated (`sim:h200`), `cc` its compute capability; `driver` is empty on
    the simulator, `build_number` belongs to llama.cpp, `version` to fattn-probe. These are only names; `fingerprint`
    identifies the contents, and is None for a run by an older version of fattn-probe.
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
    fingerprint: Fingerprint | None = None

    @property
    def line(self) -> str:
        """The name shared by the nightly runs that are compared with each other.

        A simulated GPU is the same on every machine; a real GPU's line names the machine, because times depend on it.
        """
        place = self.machine if self.engine == "cuda" else ""
        return "/".join((self.engine, self.device, self.cc, self.flavour, place))

    @property
    def tree(self) -> str:
        """The source and its patches: `pypi:xllamacpp==2026.10.11549 with fault-stream-k-seam`."""
        return f"{self.source} with {', '.join(self.patches.split())}" if self.patches else self.source


@dataclass(frozen=True)
class Result:
    """The result of one case: its `Judgement` as stored in the history; fields with the same name mean the same thing.

    `reason` is the first line of the judgement's reason, `failure` all of it. `metrics` come from `results.metrics_of`;
    only a wrong output has an `error_map`. `launches` has one JSON line per launch record. `diagnosis` is the first
    cause found for a wrong output, in words. `unlike_base` describes how the launches of an edited or patched llama.cpp
    differ from those of its base (`run/base.py`). `fingerprint` is a digest of the case (`case_fingerprint`), empty in
    runs by older versions. `reused`: this is the verdict from an earlier run, which executed the same code.
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
    unlike_base: str = ""
    fingerprint: str = ""
    reused: bool = False

    @classmethod
    def lost(cls, case: Case, why: str, failure: str = "") -> "Result":
        """A case without a verdict; the reason is the compiler's first error, otherwise the first line of `why`."""
        reason, finding = why.partition("\n")[0], None
        if error := COMPILER.search(why):
            reason = f"does not compile: {error['message']}"
            finding = Finding(COMPILE, error["message"], file=short_path(error["file"]), line=int(error["line"]))
        return cls(case.name, case.digest, "lost", reason, failure=failure or why, finding=finding)

    @property
    def uncompiled(self) -> bool:
        """Whether a compiler refuses the source, or stopped at an instruction: wrong, or unknown to the simulator."""
        found = self.finding
        return self.status == "lost" and found is not None and (found.kind == COMPILE or found.is_lost)

    @property
    def time(self) -> float | None:
        """The median time of the repeats."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def kernels(self) -> tuple[LaunchRecord, ...]:
        """The launch records."""
        return LAUNCHES_IN(self.launches)

    @property
    def kernel(self) -> str:
        """The attention kernel that was launched, or the kernel that a fault stopped; empty for neither."""
        return attention_kernel(self.kernels, self.finding)

    @property
    def explained(self) -> str:
        """The reason, preceded by the known defect if the failure is one, otherwise followed by the cause."""
        if self.known or not self.diagnosis:
            return named(self.known, self.reason)
        return f"{self.reason}; cause: {self.diagnosis}"

    @property
    def only_another_kernel(self) -> bool:
        """Whether the case fails only because its kernel is not that of the release; its output is correct."""
        return self.status == "fail" and {check.name for check in self.checks if check.fails} == {"kernels"}

    @property
    def place(self) -> str:
        """` in KERNEL, block, thread, FILE:LINE` where a kernel was stopped; empty if it was not."""
        return f" in {self.finding.place}" if self.finding and self.finding.place else ""


RESULT = Document("a result", Result)
LAUNCHES_IN = functools.lru_cache(maxsize=1 << 12)(parse_launches)  # results often have the same launches


class Cell(NamedTuple):
    """One result for plots: `ratio` is its largest error as a share of the bound, `time` is in seconds."""

    run: int
    name: str
    digest: str
    status: str
    ratio: float | None
    nmse: float | None
    time: float | None


def case_fingerprint(case: Case) -> str:
    """A digest of a case with its tolerance and expectations, which also affect the verdict."""
    told = [case.digest, case.tolerance.model_dump(mode="json"), case.expect]
    return short(json.dumps(told, sort_keys=True, default=str))


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


CASE = Document("a case in the history", StoredCase)


def whole_op(text: str) -> str:
    """Convert a case from a history older than version 3, which stored only its sizes, to JSON with the op.

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
    return CASE.text(StoredCase(old["name"], old["digest"], old["scenario"], old["mask"], op))


@dataclass(frozen=True)
class Shard:
    """Shard `number` (from 1) of `of` shards; a case's digest alone determines its shard."""

    number: int = 1
    of: int = 1

    def has(self, digest: str) -> bool:
        """Whether a case with this digest belongs to the shard."""
        return int(short(digest, 12), 16) % self.of == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


ALL = Shard()
"""The shard with every case."""


def parse_shard(text: str) -> Shard:
    """Parse a shard such as `2/8`; raises InputError for anything else."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise InputError(f"--shard {text!r}: not a shard, allowed: K/N with 1 <= K <= N, such as 2/8")
    return Shard(int(found[1]), int(found[2]))


@dataclass(frozen=True)
class RunPart:
    """One process's part of a run: its shard, and the name of its night; several processes may share a night's runs.

    A `regress` command without `--run` chooses a unique name, with which `--resume` finds its runs.
    """

    shard: Shard = ALL
    night: str = ""

    def of(self, identity: Identity) -> Identity:
        """The identity of the whole run, whose shards may run on several machines."""
        return replace(identity, machine="shards") if self.shard.of > 1 else identity

    def uid(self, identity: Identity, suite: str, only: str) -> str | None:
        """The run's uid, the same for all shards of a night, line, fingerprint and filter; None without a night."""
        if not self.night:
            return None
        contents = FINGERPRINT.text(identity.fingerprint) if identity.fingerprint else ""
        told = (self.night, suite, identity.line, identity.source, identity.build_number, identity.patches)
        return short("\0".join((*told, identity.version, contents, only)), 32)


MERGE_BASE = "merge base "
"""The prefix of a night's name if its runs only serve as baselines for other runs."""
WHOLE = RunPart()
"""The part of a run that one process performs alone: all of it."""


@dataclass(frozen=True)
class Settings:
    """How a run judged its cases (None if unknown), and its name filter."""

    checks: Checks | None = None
    only: str = ""


@dataclass(frozen=True)
class Run:
    """One run in the history; `ended` is None if the run is in progress, was killed, or lacks a shard.

    `planned` is the number of cases in the shards known so far; 0 if unknown.
    """

    id: int
    uid: str
    identity: Identity
    suite: str
    started: str
    ended: str | None
    planned: int = 0
    settings: Settings = Settings()
    night: str = ""

    @property
    def only_baseline(self) -> bool:
        """Whether this is the run of a merge base, which only serves as another run's baseline."""
        return self.night.startswith(MERGE_BASE)

    @property
    def place(self) -> str:
        """Where the run took place, with its entry in brackets unless that is the suite itself: `sim:h200 (races)`."""
        entry = self.suite.partition("/")[2]
        return f"{self.identity.device} ({entry})" if entry else self.identity.device

    @property
    def whole(self) -> bool:
        """Whether the run covered all cases of its suite: it was not stopped, and had no filter."""
        return self.ended is not None and not self.settings.only
