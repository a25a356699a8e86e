"""The counts of a run, its failures by kind, and the cases with a new pair of features."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations, groupby
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.activity import Activity
from fattn_probe.base.figures import clock
from fattn_probe.base.files import make_folder, write_text
from fattn_probe.base.tables import Table
from fattn_probe.cases.device import arch_name
from fattn_probe.cases.op import Op
from fattn_probe.cases.scenario.schema import MAX_CASES
from fattn_probe.lab.fuzz.run import Fuzzer, Judged
from fattn_probe.lab.fuzz.scenarios import flop
from fattn_probe.lab.fuzz.smallest import FindingKind, FuzzFailure, family_of, kind_of, shrunk
from fattn_probe.llama.launch.architecture import arch_number
from fattn_probe.llama.launch.constants import known_constants
from fattn_probe.llama.launch.geometry import Geometry, geometry_of
from fattn_probe.llama.launch.tiles import ntiles, tile_at
from fattn_probe.llama.source import Tree
from fattn_probe.machine.run.session import arch_of
from fattn_probe.verdict.judge.judgement import ATTENTION_KERNEL, attention_kernel
from fattn_probe.verdict.judge.known import by_defect
from fattn_probe.verdict.measure.verdict import FEW_BITS

MOST_TILES = 64
"""The largest number of tiles per launch for which the parts are counted."""


def features(judged: Judged, tree: Tree | None) -> tuple[str, ...]:
    """The features of a case that ran: its kernels, their division of work, and properties of the op."""
    op, recipe, launches = judged.drawn.case.op, judged.drawn.case.recipe, judged.result.kernels
    arch = arch_of(judged.drawn.target)
    geometry = geometry_of(op, launches, arch_number(arch), known_constants(tree))
    found = [arch_name(arch), f"kernel {attention_kernel(launches)}"]
    found += sorted({f"with {launch.kernel}" for launch in launches if not ATTENTION_KERNEL.search(launch.spelling)})
    flags = {
        "sinks": op.has_sinks,
        "softcap": op.params.logit_softcap,
        "ALiBi": op.params.max_bias,
        "sequences": op.sizes.n_seq > 1,
        "one mask for all sequences": op.has_mask and op.tensors["mask"].ne[3] < op.sizes.n_seq,
        "mask wider than K": op.has_mask and op.tensors["mask"].ne[0] > op.sizes.n_kv,
        "mask with padding": op.has_mask and op.tensors["mask"].ne[1] > op.sizes.n_q,
    }
    return (
        *found,
        *(() if geometry is None else division(op, geometry)),
        f"K {op.type_K}",
        f"V {op.type_V}",
        f"mask {judged.drawn.case.mask_kind}",
        *(f"{name} {getattr(recipe.layout, name).kind}" for name in ("Q", "K", "V")),
        *(f"{name} is {getattr(recipe.data, name).kind}" for name in ("Q", "K", "V")),
        *(name for name, holds in flags.items() if holds),
    )


def division(op: Op, geometry: Geometry) -> Iterator[str]:
    """Features of the division of tiles among blocks, and of partial tiles."""
    tiles = [tile_at(index, geometry.grid) for index in range(min(ntiles(geometry.grid), MOST_TILES))]
    parts = [geometry.parts_of(tile) for tile in tiles]
    steps = max(len(work.steps) for tile in parts for work in tile.values())
    yield f"{rough(steps)} KV steps in a block"
    yield f"{rough(max(map(len, parts)))} parts in a tile"
    if geometry.kernel.family.stream_k:
        yield f"{rough(-(-len(parts) // max(1, geometry.kernel.blocks[0])))} tiles in a block"
        yield "equal parts" if len({len(tile) for tile in parts}) == 1 else "unequal parts"
    elif 2 * geometry.kernel.blocks[1] > op.sizes.hsv:
        yield "more parallel blocks than half the head size"
    if op.sizes.n_kv % geometry.rows:
        yield "partial KV tile"
    if op.sizes.n_q % geometry.kernel.ncols1:
        yield "partial query tile"
    if op.sizes.group % geometry.kernel.ncols2:
        yield "partial group of heads"


def rough(number: int) -> str:
    """1, 2, 3-4, 5-8, 9-16, more."""
    for least, most in ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16)):
        if number <= most:
            return str(most) if least == most else f"{least}-{most}"
    return "more than 16"


COLUMNS = ("pass", "unsupported", "known defect", "finding")
MOST_SHRUNK = 40
"""The largest number of findings to shrink, so that a broken kernel does not take hours."""


@dataclass
class FuzzRun:
    """The results of a run by target and kernel family, and the cheapest case of each kind of failure on a target.

    `few_bits` are the passing cases in which too few bits match the rounding model. `ratios` are measured / predicted
    RMSE by kernel family. `kept` are the passing cases that had a new pair of features, `pairs` all of these pairs, and
    `smallest` the findings that were shrunk.
    """

    tree: Tree | None
    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    failures: Counter[tuple[FindingKind, str]] = field(default_factory=Counter)
    cheapest: dict[tuple[FindingKind, str], Judged] = field(default_factory=dict)
    few_bits: list[Judged] = field(default_factory=list)
    ratios: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    kept: list[Judged] = field(default_factory=list)
    pairs: set[tuple[str, str]] = field(default_factory=set)
    smallest: list[FuzzFailure] = field(default_factory=list)
    interrupted: bool = False

    def add(self, judged: Judged) -> None:
        """Count a result; keep a passing case with a new pair of features."""
        kind = kind_of(judged.result)
        column = judged.result.status if kind is None else COLUMNS[2] if kind.known else COLUMNS[3]
        self.counts[judged.on, family_of(judged.result), column] += 1
        if kind is None and (ratio := judged.result.metrics.get("rmse_by_predicted")) is not None:
            self.ratios[family_of(judged.result)].append(ratio)
        if FEW_BITS in judged.result.warning:
            self.few_bits.append(judged)
        if kind is not None:
            key = kind, judged.on
            self.failures[key] += 1
            if key not in self.cheapest or flop(judged.drawn.settings) < flop(self.cheapest[key].drawn.settings):
                self.cheapest[key] = judged
        found = features(judged, self.tree) if judged.result.status == "pass" else ()
        if new := set(combinations(found, 2)) - self.pairs:
            self.pairs |= new
            self.kept.append(judged)

    def judge(self, fuzzer: Fuzzer, activity: Activity) -> None:
        """Judge cases until the limits are reached, or the user interrupts."""
        try:
            for judged in fuzzer.run():
                self.add(judged)
                found = self.number("finding")
                left = f"of {fuzzer.cases}" if fuzzer.seconds is None else f"{clock(max(0.0, fuzzer.left))} left"
                activity.step(f"{self.cases} cases, {found} finding{'s' * (found != 1)}, {left}")
        except KeyboardInterrupt:
            self.interrupted = True

    def shrink(self, fuzzer: Fuzzer, seconds: float, folder: Path, activity: Activity) -> None:
        """Shrink the cheapest case of each finding, within a total time in seconds, and write them to a folder."""
        cheapest = [(kind, self.cheapest[kind, on]) for kind, on in self.findings[:MOST_SHRUNK]]
        failures = [FuzzFailure(kind, one.drawn.settings, one.result, fuzzer.jobs[one.on]) for kind, one in cheapest]
        activity.step(f"shrinking {len(failures)} findings")
        try:
            for smallest in shrunk(failures, fuzzer.workers, seconds):
                make_folder(folder, "--findings")
                self.smallest.append(smallest.written(folder))
                activity.note(f"wrote {self.smallest[-1].path}")
        except KeyboardInterrupt:
            self.interrupted = True

    @property
    def cases(self) -> int:
        """The number of cases that were judged."""
        return self.counts.total()

    @property
    def findings(self) -> list[tuple[FindingKind, str]]:
        """The kinds of failures, with their targets, that no known defect explains."""
        return sorted(key for key in self.failures if not key[0].known)

    def number(self, column: str) -> int:
        """The number of cases in a column."""
        return sum(count for key, count in self.counts.items() if key[2] == column)


def document(run: FuzzRun) -> dict[str, Any]:
    """A run for `--json`; a finding has its smallest scenario if it was shrunk."""
    shrunk = {(one.kind, one.on): (one.result, one.settings) for one in run.smallest}
    findings = []
    for key in run.findings:
        (kind, on), judged = key, run.cheapest[key]
        result, settings = shrunk.get(key, (judged.result, judged.drawn.settings))
        said = {"on": on, "cases": run.failures[key], "case": result.name, "reason": result.reason}
        findings.append(asdict(kind) | said | {"scenario": settings})
    return {
        "cases": run.cases,
        "interrupted": run.interrupted,
        "counts": [
            {"on": on, "family": family, **{column: run.counts[on, family, column] for column in COLUMNS}}
            for on, family in sorted({(on, family) for on, family, _ in run.counts})
        ],
        "known_defects": dict(known_defects(run)),
        "rmse_by_predicted": {
            family: {"cases": len(found), "lowest": min(found), "median": median(found), "highest": max(found)}
            for family, found in sorted(run.ratios.items())
        },
        "few_bits": [
            {"on": one.on, "case": one.result.name, "warning": one.result.warning, "scenario": one.drawn.settings}
            for one in run.few_bits
        ],
        "findings": findings,
    }


def known_defects(run: FuzzRun) -> Counter[str]:
    """The number of cases that fail because of each known defect of llama.cpp."""
    return sum((Counter({kind.known: count}) for (kind, _), count in run.failures.items() if kind.known), Counter())


def render(run: FuzzRun, words: Sequence[str] = ()) -> RenderableType:
    """A row per target and kernel family; below, the known defects and the findings, with their scenarios.

    `words` are the flags that `compare` needs to run the findings again.
    """
    rows, shown = [], []
    for on, family in sorted({(on, family) for on, family, _ in run.counts}):
        numbers = [run.counts[on, family, column] for column in COLUMNS]
        rows.append((on, family, str(sum(numbers)), *map(str, numbers)))
    for one in run.smallest:
        command = shlex.join(["fattn-probe", "compare", str(one.path), *words])
        shown.append(Text(f"\n{one.text}# {one.result.reason}\n$ {command}"))
    return Group(Table(("on", "kernels", "cases", *COLUMNS), tuple(rows)), Text(), *map(Text, summary(run)), *shown)


def summary(run: FuzzRun) -> Iterator[str]:
    """The totals, the known defects, and each finding with its first case."""
    numbers = ", ".join(f"{run.number(column)} {column}" for column in COLUMNS)
    yield f"{run.cases} cases: {numbers}" + (" (interrupted)" if run.interrupted else "")
    yield from by_defect(sorted(known_defects(run).elements()))
    if run.few_bits:
        yield f"{len(run.few_bits)} pass, but few of their bits match the rounding model (--json lists them)"
    for kind, on in run.findings:
        result, count = run.cheapest[kind, on].result, run.failures[kind, on]
        yield f"finding: {kind} on {on}, {count} case{'s' * (count > 1)}, such as {result.name}: {result.reason}"


def write_cases(cases: Sequence[Judged], folder: Path) -> Iterator[Path]:
    """Write `fuzz-TARGET.yaml` for each target to a folder; yields the paths. Cases are ordered by number."""
    make_folder(folder, "--keep")
    ordered = sorted(cases, key=lambda judged: (judged.on, judged.drawn.number))
    for on, group in groupby(ordered, key=lambda judged: judged.on):
        path = folder / f"fuzz-{on.removeprefix('sim:')}.yaml"
        write_text(path, text_of(list(group)[:MAX_CASES], on))
        yield path


def text_of(cases: Sequence[Judged], on: str) -> str:
    """A scenario file with a case on each line."""
    settings = cases[0].drawn.settings
    base = {
        "version": 1,
        "about": "random cases with a new pair of features",
        **{key: settings[key] for key in ("hsk", "n_head", "n_q", "n_kv")},
    }
    head = yaml.safe_dump(base | {"device": on}, sort_keys=False)
    lines = []
    for judged in cases:
        named = {"name": judged.drawn.case.name.removeprefix("fuzz-")} | judged.drawn.settings  # SEED-NUMBER
        flow = yaml.safe_dump(named, sort_keys=False, default_flow_style=True, width=10**6).strip()
        lines.append(f"  - {flow}\n")
    return f"{head}matrix:\n  include:\n{''.join(lines)}"
