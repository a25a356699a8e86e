"""Classify the failures of a run, shrink each in a separate process, and write them as scenario files."""

import copy
import functools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from fattn_probe.base.errors import LostError
from fattn_probe.base.files import write_text
from fattn_probe.base.workers import Died, Workers, simply
from fattn_probe.cases.device.target import picklable
from fattn_probe.cases.scenario import Case
from fattn_probe.daily.regress.pool import Job, result_or_loss
from fattn_probe.daily.regress.records import Result
from fattn_probe.lab.fuzz.scenarios import STRIDE, Settings, case_of, checked, simplest
from fattn_probe.llama.build import RUNNER
from fattn_probe.llama.launch.families import BY_KERNEL
from fattn_probe.machine.run.command import plan_cases
from fattn_probe.machine.run.prepare import KernelReader
from fattn_probe.machine.run.session import Session
from fattn_probe.machine.run.simulator import Simulation

NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
NOT_FINITE = {"unwritten": "elements are never written", "nan": "NaN", "inf": "infinities"}
"""The metrics that count non-finite elements, the worst first, and their descriptions."""
WRONG = "wrong values"
OTHER_BITS = "different bits from run to run"
FAILS = {"deterministic": OTHER_BITS}
"""Descriptions of failing checks; others appear with their names."""


@dataclass(frozen=True, order=True)
class FindingKind:
    """The kind of a failure: failures of the same kind probably have the same cause.

    `known` is the known defect of llama.cpp, or empty; `family` the kernel's family; `what` is the simulator's name for
    the fault, with the function, or the fault in the output.
    """

    status: str
    known: str
    family: str
    what: str

    def __str__(self) -> str:
        return f"{self.known or self.what} ({self.family})"


def kind_of(result: Result) -> FindingKind | None:
    """The kind of a result's failure; None if it passes or is unsupported."""
    finding = result.finding
    if result.status in ("pass", "unsupported"):
        return None
    if finding is not None:
        place = finding.frames[0].partition(" at ")[0] if finding.frames else finding.file
        function = place.partition("<")[0] or finding.kernel.partition("<")[0] or "an unknown place"
        what = f"{finding.kind} in {function}"
    elif result.status in ("lost", "unjudged"):
        what = NUMBER.sub("N", result.reason)[:80]
    elif failing := next((check.name for check in result.checks if check.fails), ""):
        what = FAILS.get(failing, f"fails {failing}")
    else:
        what = next((what for name, what in NOT_FINITE.items() if result.metrics.get(name)), WRONG)
    return FindingKind(result.status, result.known, family_of(result), what)


def family_of(result: Result) -> str:
    """The family of the attention kernel that was launched or stopped; `other` for none."""
    family = BY_KERNEL.get(result.kernel.partition("<")[0])
    return family.name if family else "other"


MOST_TRIES = 300
Place = tuple[str, ...]
OPTIONAL = ("layout", "data", "n_seq", "sinks", "logit_softcap", "scale", "prec", "n_kv_max", "max_bias", "type_V")
"""Settings that can be removed separately, those with the largest effect first."""
SIZES = ("n_kv", "n_q", "n_seq")
FIXED = frozenset({"hsk", "hsv", "n_head", "n_head_kv", "seed", *SIZES})
"""Numbers that `_numbers` does not change: they choose the kernel, or have their own rule."""


def shrink(settings: Settings, fails: Callable[[Settings], bool], tries: int = MOST_TRIES) -> Settings:
    """The smallest legal scenario found that `fails` like the given one; tries at most `tries` scenarios."""
    seen = [settings]
    found = True
    while found:
        found = False
        for candidate in candidates(settings):
            if candidate in seen or checked(candidate) is None:
                continue
            if len(seen) > tries:
                return settings
            seen.append(candidate)
            if fails(candidate):
                settings, found = candidate, True
                break
    return settings


def candidates(settings: Settings) -> Iterator[Settings]:
    """Simpler scenarios, each with one change, largest changes first; not all are legal."""
    for change in (_without, _inner, _sizes, _numbers):
        for candidate in change(settings):
            simple = simplest(candidate)
            if simple != settings:
                yield simple


def _without(settings: Settings) -> Iterator[Settings]:
    """Without a whole setting (if it is the mask, also without everything that needs one), or with a simpler mask."""
    if "mask" in settings:
        layout = {name: view for name, view in settings.get("layout", {}).items() if name != "mask"}
        yield _drop(settings, "mask", "max_bias", "n_kv_max") | {"layout": layout}
    for key in OPTIONAL:
        if key in settings:
            yield _drop(settings, key)
    if settings.get("seed"):
        yield settings | {"seed": 0}
    mask = settings.get("mask", {"kind": "none"})
    if mask["kind"] not in ("none", "causal"):
        yield _drop(settings, "max_bias", "n_kv_max") | {"mask": {"kind": "causal"}}
    for part in mask.get("of", ()):
        yield settings | {"mask": part}


def _inner(settings: Settings) -> Iterator[Settings]:
    """Without a part of the mask, the layout or the data."""
    for place, value in _leaves(settings):
        if len(place) > 2 and place[-1] == "kind" and value != "uniform":
            yield _changed(settings, place[:-1], None)
    for place, value in _leaves(settings):
        if len(place) > 1 and place[-1] != "kind":
            yield _changed(settings, place, None)
        elif place[:1] == ("data",) and value != "uniform":
            yield _changed(settings, place[:-1], {"kind": "uniform"})


def _sizes(settings: Settings) -> Iterator[Settings]:
    """With fewer K/V heads, fewer heads for each, smaller sizes, then simpler types."""
    heads: int = settings.get("n_head_kv") or settings["n_head"]
    group = settings["n_head"] // heads
    for fewer in _smaller(heads):
        yield settings | {"n_head": fewer * group, "n_head_kv": fewer}
    for fewer in _smaller(group):
        yield settings | {"n_head": heads * fewer, "n_head_kv": heads}
    for key in SIZES:
        size: int = settings.get(key) or 1
        strides = [STRIDE * number for number in _smaller(size // STRIDE)] if key == "n_kv" else []
        for fewer in [*strides, *_smaller(size)]:
            yield settings | {key: fewer}
    if settings.get("type_K", "f16") != "f16":
        yield settings | {"type_K": "f16", "type_V": "f16"}
        yield settings | {"type_K": "f16"}


def _numbers(settings: Settings) -> Iterator[Settings]:
    """With smaller integers, and rounder non-integers."""
    for place, value in _leaves(settings):
        if place[-1] in FIXED or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if isinstance(value, int):
            for fewer in _smaller(value):
                yield _changed(settings, place, fewer)
        elif value != (rounder := float(f"{value:.1g}")):
            yield _changed(settings, place, rounder)


def _smaller(number: int) -> Iterator[int]:
    """1, half of the number, three quarters of it, one less."""
    yield from dict.fromkeys(n for n in (1, number // 2, 3 * number // 4, number - 1) if 1 <= n < number)


def _leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:  # noqa: ANN401 - YAML's values
    """The values in nested mappings, with their keys; a list counts as one value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*place, key))
    else:
        yield place, value


def _changed(settings: Settings, place: Place, value: object) -> Settings:
    """A copy with a different value at `place`, or without that key if the value is None."""
    found = copy.deepcopy(settings)
    inner = found
    for key in place[:-1]:
        inner = inner[key]
    if value is None:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return found


def _drop(settings: Settings, *keys: str) -> Settings:
    return {key: value for key, value in settings.items() if key not in keys}


@dataclass(frozen=True)
class FuzzFailure:
    """A failing scenario, as drawn or shrunk, with its result, the job that judged it, and its file if it has one.

    Shrinking uses only the kernels of the job's build.
    """

    kind: FindingKind
    settings: Settings
    result: Result
    job: Job
    path: Path | None = None

    @property
    def on(self) -> str:
        """The target."""
        return str(self.job.target)

    @property
    def text(self) -> str:
        """The scenario file."""
        about = f"found by fuzz ({self.result.name}): {self.kind}"
        document = {"version": 1, "about": about[:200], **self.settings, "device": self.on}
        return yaml.safe_dump(document, sort_keys=False, width=120)

    def written(self, folder: Path) -> "FuzzFailure":
        """Write the scenario file to a folder."""
        path = folder / f"{self.result.name}.yaml"
        write_text(path, self.text)
        return replace(self, path=path)


def shrunk(failures: Sequence[FuzzFailure], workers: int, seconds: float) -> Iterator[FuzzFailure]:
    """The smallest scenario found for each failure, within a total time in seconds."""
    work = functools.partial(smallest, ends=time.monotonic() + seconds)
    sendable = [
        replace(failure, job=replace(failure.job, target=picklable(failure.job.target))) for failure in failures
    ]
    with Workers[FuzzFailure, FuzzFailure](functools.partial(simply, work), workers) as pool:
        for failure, found in pool.answers(sendable):
            if isinstance(found, Died):
                raise LostError(f"{failure.result.name} cannot be shrunk: {found.how}")
            yield found


def smallest(failure: FuzzFailure, ends: float) -> FuzzFailure:
    """Shrink one failure until the machine's monotonic clock shows `ends`."""
    job, name = failure.job, failure.result.name
    session = Session(job.options, builds=dict(job.builds))
    last = [failure.result]

    def fails(settings: Settings) -> bool:
        case = case_of(settings, name)
        if time.monotonic() > ends or not is_built(job, case):
            return False
        result = result_or_loss(job, session, case)
        if kind_of(result) != failure.kind:
            return False
        last[0] = result
        return True

    with session.persistent_runner():
        settings = shrink(failure.settings, fails)
    return replace(failure, settings=settings, result=last[0])


def is_built(job: Job, case: Case) -> bool:
    """Whether the build has all kernels that a case needs; true if its dry run fails, as its real run then will."""
    build, tree = job.builds[f"{job.target}/{RUNNER}"], job.options.tree
    assert tree is not None
    simulation = Simulation(dry=True, skip_kernels=True, threads=1)
    dry = Session(replace(job.options, simulation=simulation), builds=dict(job.builds))
    (done,) = plan_cases(dry, [(case, [job.target])])
    names = KernelReader(tree)(done)
    return names is None or set(names) <= set(build.manifest.contents.kernels)
