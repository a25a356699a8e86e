"""The matrix: one suite on every GPU of the catalogue with llama.cpp releases of several years, on one page.

On one GPU, the suite also runs with every release on the index: each night with some of them.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from fattn_probe.base.documents import Document
from fattn_probe.cases.device import Device, cc_order
from fattn_probe.daily.regress.history import History
from fattn_probe.daily.regress.records import Result, Run, StoredCase
from fattn_probe.llama.source.spec import PINS, releases
from fattn_probe.verdict.judge.known import Failure, defects, known_defect
from fattn_probe.verdict.judge.origin import origin_elsewhere

SUITE = "quick"
RELEASES = tuple(f"pypi:{name}=={version}" for name, version in PINS)
"""The releases of the matrix, oldest first."""
LISTED = frozenset(release.source for release in releases())
ONE_GPU = "sim:h200"
"""The GPU on which every release on the index runs."""
HEAD = """\
# GPUs and releases

Made by `scripts/nightly matrix`; do not edit. `scripts/nightly devices` makes the results
([every night](../guide/nightly.md)).

The suite `{suite}` ran on every GPU of the catalogue, simulated, with {releases} releases of llama.cpp: {runs} runs,
{cases} results. Each cell gives the number of cases that pass. If they are not 0, the numbers of other cases follow:
those that the release does not support on that GPU, those that fail because of a known defect of llama.cpp, and those
that fail or are lost and are **not explained**.
"""


@dataclass(frozen=True)
class SharedBuild:
    """A release on GPUs of one architecture, which share a build."""

    source: str
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Alarm:
    """A failed or lost case that no known defect explains."""

    case: str
    status: str
    reason: str


@dataclass(frozen=True)
class MatrixCell:
    """The results of one release on one GPU: the numbers of cases, those with known defects by id, and the alarms."""

    source: str
    build_number: str
    device: str
    cc: str
    started: str
    passed: int
    unsupported: int = 0
    known: Mapping[str, int] = field(default_factory=dict)
    alarms: tuple[Alarm, ...] = ()

    @property
    def cases(self) -> int:
        """The number of cases."""
        return self.passed + self.unsupported + sum(self.known.values()) + len(self.alarms)

    def __str__(self) -> str:
        known = sum(self.known.values())
        parts = [f"{self.passed}", *([f"{self.unsupported} unsupported"] if self.unsupported else [])]
        parts += [f"{known} known"] if known else []
        parts += [f"**{len(self.alarms)} not explained**"] if self.alarms else []
        return ", ".join(parts)


CELLS = Document("the results of the matrix", list[MatrixCell])


def shared_builds(devices: Iterable[Device], sources: Sequence[str]) -> list[SharedBuild]:
    """The builds of the matrix, the most valuable first, so that a run that ends early includes these builds.

    The order is: the newest release on all GPUs, the other releases on one GPU of each architecture, the rest.
    """
    by_arch: dict[str, list[str]] = {}
    for device in devices:
        by_arch.setdefault(device.arch, []).append(f"sim:{device.id}")
    largest = sorted(by_arch.values(), key=lambda names: -len(names))
    newest, older = sources[-1:], sources[-2::-1]
    found = [SharedBuild(source, tuple(names)) for source in newest for names in largest]
    found += [SharedBuild(source, (names[0],)) for source in older for names in largest]
    return found + [SharedBuild(source, tuple(names[1:])) for source in older for names in largest if names[1:]]


def without(found: Iterable[SharedBuild], done: Iterable[MatrixCell]) -> list[SharedBuild]:
    """The builds, without the GPUs that already have results."""
    there = {(cell.source, cell.device) for cell in done}
    left = [
        replace(build, devices=tuple(device for device in build.devices if (build.source, device) not in there))
        for build in found
    ]
    return [build for build in left if build.devices]


def part_of(number: int, parts: int) -> tuple[str, ...]:
    """One part of the releases on the index, with some releases of every year; `number` counts modulo `parts`."""
    return tuple(release.source for release in releases())[number % parts :: parts]


def cells_of(history: History, only: str = "") -> list[MatrixCell]:
    """The cells from the last finished run of the suite for each release and GPU, among runs with the filter `only`."""
    runs = [run for run in history.runs(suite=SUITE) if run.ended and run.settings.only == only]
    last = {(run.identity.tree, run.identity.device): run for run in runs}
    return [cell_of(history, run) for run in last.values()]


def cell_of(history: History, run: Run) -> MatrixCell:
    """One cell from the results of a run; the stored finding also identifies a defect that became known later."""
    cases = history.cases(run)
    results = [recognised(result, cases.get(result.name), run) for result in history.results(run).values()]
    statuses = Counter(result.status for result in results)
    known = Counter(result.known for result in results if result.known)
    wrong = [result for result in results if result.status in ("fail", "unjudged", "lost") and not result.known]
    return MatrixCell(
        source=run.identity.tree,
        build_number=run.identity.build_number,
        device=run.identity.device,
        cc=run.identity.cc,
        started=run.started[:19],
        passed=statuses["pass"],
        unsupported=statuses["unsupported"],
        known=dict(sorted(known.items())),
        alarms=tuple(Alarm(result.name, result.status, result.reason) for result in wrong),
    )


def recognised(result: Result, case: StoredCase | None, run: Run) -> Result:
    """The result with its known defect according to today's catalogue, if a finding ended the run."""
    finding = result.finding
    if result.known or finding is None or case is None:
        return result
    identity = run.identity
    origin = origin_elsewhere(identity.source, identity.build_number, identity.patches.split())
    return replace(result, known=known_defect(Failure(case.op, identity.cc, finding.kernel, finding), origin).id)


def to_json(cells: Iterable[MatrixCell]) -> str:
    """The cells as JSON, for `from_json`; one line per cell, so that a change shows in a diff."""
    lines = [json.dumps(asdict(cell)) for cell in ordered(cells)]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def from_json(text: str) -> list[MatrixCell]:
    """The cells of `to_json`."""
    return CELLS.parse(text, "the matrix")


def ordered(cells: Iterable[MatrixCell]) -> list[MatrixCell]:
    """The cells by release, oldest first, then by compute capability and name; the newer of two for one place."""
    newest = {(cell.source, cell.device): cell for cell in sorted(cells, key=lambda cell: cell.started)}
    age = dict(zip(RELEASES, range(len(RELEASES)), strict=True))
    return sorted(
        newest.values(),
        key=lambda cell: (age.get(cell.source, len(age)), cell.source, cc_order(cell.cc), cell.device),
    )


def page(cells: Iterable[MatrixCell]) -> str:
    """The page: the table, the known defects, and the cases that are not explained."""
    every = ordered(cells)
    found = [cell for cell in every if cell.source in RELEASES or cell.source not in LISTED]
    sources = list(dict.fromkeys(cell.source for cell in found))
    cases = sum(cell.cases for cell in found)
    head = HEAD.format(suite=SUITE, releases=len(sources), runs=len(found), cases=f"{cases:,}")
    days = sorted({cell.started[:10] for cell in found})
    when = "" if not days else f"\nRun on {days[0]}" + (f" to {days[-1]}" if days[1:] else "") + ".\n"
    tables = [*_table(found, sources), "", *_releases(every), "", *_known(every), "", *_alarms(every)]
    return "\n".join([head + when, *tables]) + "\n"


def _table(found: Sequence[MatrixCell], sources: Sequence[str]) -> Iterator[str]:
    at = {(cell.source, cell.device): str(cell) for cell in found}
    devices = sorted({(cc_order(cell.cc), cell.device, cell.cc) for cell in found})
    yield f"| GPU | cc | {' | '.join(map(release_of, sources))} |"
    yield "| --- | --- |" + " --- |" * len(sources)
    for _, device, cc in devices:
        cells = (at.get((source, device), "not run") for source in sources)
        yield f"| {device.removeprefix('sim:')} | {cc} | {' | '.join(cells)} |"


def _releases(found: Iterable[MatrixCell]) -> Iterator[str]:
    """Every release on the index, with its results on one GPU."""
    at = {cell.source: cell for cell in found if cell.device == ONE_GPU}
    yield "## Every release"
    yield ""
    yield f"The same suite on `{ONE_GPU}` with every release on the index that contains the attention kernels in their"
    yield "present form. `scripts/nightly releases` runs some of these releases each night."
    yield ""
    yield from ("| release | build | uploaded | result | run on |", "| --- | --- | --- | --- | --- |")
    for release in releases():
        cell = at.get(release.source)
        result = "not run | -" if cell is None else f"{cell} | {cell.started[:10]}"
        build = f"b{release.build}" if release.build else release.commit or "?"
        yield f"| {release.project} {release.version} | {build} | {release.uploaded} | {result} |"


def release_of(source: str) -> str:
    """A release's version; for other sources, the full specification."""
    return source.rpartition("==")[2] if source in RELEASES else source


def _known(found: Sequence[MatrixCell]) -> Iterator[str]:
    """The known defects, each with its releases, its GPUs and its number of cases."""
    yield from ("## Known defects of llama.cpp", "")
    ids = sorted({id for cell in found for id in cell.known})
    if not ids:
        yield "None occurred."
        return
    yield from ("| defect | what | releases | GPUs | cases |", "| --- | --- | --- | --- | --- |")
    for id in ids:
        having = [cell for cell in found if id in cell.known]
        releases = ", ".join(dict.fromkeys(release_of(cell.source) for cell in having))
        devices = ", ".join(dict.fromkeys(cell.device.removeprefix("sim:") for cell in having))
        number = sum(cell.known[id] for cell in having)
        yield f"| [{id}](../findings.md#{id}) | {defects()[id].about} | {releases} | {devices} | {number} |"


def _alarms(found: Sequence[MatrixCell]) -> Iterator[str]:
    """The cases that are not explained."""
    rows = [(cell, alarm) for cell in found for alarm in cell.alarms]
    yield from ("## Not explained", "")
    if not rows:
        yield "None."
        return
    yield from ("| release | GPU | case | | reason |", "| --- | --- | --- | --- | --- |")
    for cell, alarm in rows:
        reason = alarm.reason.replace("|", "\\|")
        device = cell.device.removeprefix("sim:")
        yield f"| {release_of(cell.source)} | {device} | {alarm.case} | {alarm.status} | {reason} |"
