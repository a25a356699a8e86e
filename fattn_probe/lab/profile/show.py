"""Profiles as tables, as a roofline on the terminal, and as JSON."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from fattn_probe.base.documents import plain
from fattn_probe.base.errors import InputError
from fattn_probe.base.figures import times
from fattn_probe.base.tables import Table, labelled
from fattn_probe.base.view.characters import lines
from fattn_probe.base.view.marks import Axis, Drawing, Look, Mark, Stroke, Words
from fattn_probe.cases.device import Device
from fattn_probe.cases.device.origin import legend
from fattn_probe.lab.profile.command import Profiled
from fattn_probe.lab.profile.counts import ROWS, Counts, Profile, matched, ratio
from fattn_probe.lab.profile.roofline import Point, Roof, occupancy, roof_of
from fattn_probe.llama.launch.kernel import columns_of_tile

Gpus = Mapping[str, Device | None]


def roof_for(counts: Counts, device: Device | None) -> Roof | None:
    """The roof for a launch: that of the tensor cores if it used them, otherwise that of float32.

    ncu also counts half-precision arithmetic as tensor instructions, but then without ldmatrix.
    """
    values = counts.values
    tensor = bool(values.get("tensor_flops") or (values.get("tensor") and values.get("ldmatrix")))
    return roof_of(device, tensor=tensor) if device is not None else None


def point_of(profile: Profile, counts: Counts) -> Point | None:
    """The launch's point on the roofline, with the op's operations for an attention kernel; None if it is unknown."""
    flops = profile.flops if columns_of_tile(counts.launch.spelling) else counts.values.get("tensor_flops")
    moved = counts.bytes_moved
    if not flops or not moved:
        return None
    nanoseconds = counts.values.get("nanoseconds")
    label = f"{counts.launch.kernel} on {profile.on}"
    return Point(label, flops, moved, nanoseconds / 1e9 if nanoseconds else None)


def document(done: Sequence[Profiled], gpus: Gpus) -> dict[str, Any]:
    """Key `profiles`: `name`, `on`, `problem`, `flops`, `formula`, `division_origin`, `launches` with their counts."""
    return {
        "profiles": [
            {
                "name": name,
                "on": profile.on,
                "problem": profile.problem or None,
                "flops": profile.flops,
                "formula": plain(profile.formula),
                "division_origin": None if profile.division is None else str(profile.division),
                "launches": [launch_json(profile, counts, gpus[profile.on]) for counts in profile.counts],
            }
            for name, profiles in done
            for profile in profiles
        ]
    }


def launch_json(profile: Profile, counts: Counts, device: Device | None) -> dict[str, Any]:
    """One launch: its kernel, counts by key, bytes by tensor, occupancy, and position on the roofline."""
    fits = occupancy(counts.launch, device) if device else None
    roof, point = roof_for(counts, device), point_of(profile, counts)
    value: dict[str, Any] = counts.launch.document() | {"counts": dict(counts.values)}
    value["sectors_of_a_load"], value["sectors_of_a_store"] = counts.sectors_of_a_load, counts.sectors_of_a_store
    value["traffic"] = plain(counts.traffic)
    value["occupancy"] = fits and {
        "blocks": fits.blocks,
        "share": fits.share,
        "limits": fits.limits,
        "limited_by": list(fits.limited_by),
        "origin": str(counts.launch.origin),
    }
    value["roofline"] = (
        point
        and roof
        and {
            "flops": point.flops,
            "bytes": point.bytes,
            "intensity": point.intensity,
            "ridge": roof.ridge,
            "bound": roof.bound(point.intensity),
            "attainable": roof.attainable(point.intensity),
            "achieved": point.achieved,
            "least_seconds": point.least_seconds(roof),
        }
    )
    return value


HEIGHT, WIDTH, LEFT = 8, 60, 12
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")
PLAIN = Look("")


def roofline(found: Sequence[tuple[Roof, Point]]) -> Drawing:
    """The roofs and the kernels: a circle at a kernel's limit, a cross at its measured speed."""
    places = [value for roof, point in found for value in (roof.ridge, point.intensity)]
    reached = [point.achieved for _, point in found if point.achieved]
    first, last, top = min(places) / 10, max(places) * 10, max(roof.flops for roof, _ in found)
    bottom = min([*(roof.attainable(first) for roof, _ in found), *reached]) / 10**0.2
    marks: list[Mark] = []
    for roof in dict.fromkeys(roof for roof, _ in found):
        at = (first, roof.ridge, last)
        marks.append(Stroke(tuple((value, roof.attainable(value)) for value in at), PLAIN))
    for number, (roof, point) in enumerate(found):
        colour = COLOURS[number % len(COLOURS)]
        place = (point.intensity, roof.attainable(point.intensity))
        marks.append(Stroke((place,), Look("", sign="o", colour=colour), point.label))
        if point.achieved:
            marks.append(Stroke(((point.intensity, point.achieved),), Look("", sign="x", colour=colour)))
    axes = Axis("operations per byte", first, last, True), Axis("operations per second", bottom, top, True)
    return Drawing("", 0, 0, tuple(marks), axes=axes)


@dataclass(frozen=True)
class RooflinePicture:
    """A roofline in characters; `o` is a kernel's limit, `x` its measured speed."""

    roof: Roof
    point: Point

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(WIDTH, options.max_width - LEFT)
        drawn = roofline([(self.roof, self.point)])
        assert drawn.axes is not None
        first, end = f"{drawn.axes[0].first:.2g}", f"{drawn.axes[0].last:.2g} flops per byte"
        marks = [
            Words(LEFT - 1, 0, f"{self.roof.flops / 1e12:.4g} TF/s", PLAIN, end=True),
            *(Words(LEFT - 1, row, "│", PLAIN) for row in range(HEIGHT)),
            Words(LEFT - 1, HEIGHT, "└" + "─" * width, PLAIN),
            Words(LEFT, HEIGHT + 1, first + " " * max(1, width - len(first) - len(end)) + end, PLAIN),
        ]
        yield from lines(Drawing("", LEFT + width, HEIGHT + 2, (*drawn.placed(LEFT, 0, width - 1, HEIGHT - 1), *marks)))


def write_roofline(done: Sequence[Profiled], gpus: Gpus, path: Path) -> None:
    """Draw all launches with a known position, with their roofs; InputError if there is none."""
    from fattn_probe.base.view.plot import plot  # matplotlib takes a second to load

    found = [
        (roof, point)
        for _, profiles in done
        for profile in profiles
        for counts in profile.counts
        if (roof := roof_for(counts, gpus[profile.on])) and (point := point_of(profile, counts))
    ]
    if not found:
        raise InputError(f"--plot {path}: no launch has known operations and bytes, and a GPU with known peaks")
    plot([roofline(found)], [path], (7.0, 4.2))


SHOWN_ALWAYS = frozenset({"tensor", "ldmatrix", "wavefronts", "conflicts", "load_sectors"})


def render(done: Sequence[Profiled], gpus: Gpus) -> RenderableType:
    """Each launch of each case."""
    return Group(*(part for name, profiles in done for part in parts(name, profiles, gpus)))


def parts(name: str, profiles: Sequence[Profile], gpus: Gpus) -> Iterator[RenderableType]:
    """A case: its problems, then its launches."""
    for profile in profiles:
        if profile.problem:
            yield Text(f"{name} on {profile.on}: {profile.problem}", "red")
    good = [profile for profile in profiles if not profile.problem]
    if good and not any(profile.counts for profile in good):
        yield Text(f"{name}: no kernel was launched", "dim")
    for row in matched(good):
        yield from launch_parts(name, good, row, gpus)
    yield from unknowns(good)


def launch_parts(
    name: str, profiles: Sequence[Profile], row: Sequence[Counts | None], gpus: Gpus
) -> Iterator[RenderableType]:
    """One launch on all targets: counts, bytes by tensor, occupancy, roofline."""
    pairs = [(profile, counts) for profile, counts in zip(profiles, row, strict=True) if counts is not None]
    launch = pairs[0][1].launch
    yield Text(f"{name}: {launch.spelling}", "bold")
    yield Text(f"{launch.geometry}: {math.prod(launch.grid)} blocks", "dim")
    there = [counts for _, counts in pairs]
    lines: list[tuple[str, ...]] = []
    for kind in ROWS:
        values = [counts.values.get(kind["key"]) for counts in there]
        if any(values) or (kind["key"] in SHOWN_ALWAYS and values != [None] * len(values)):
            lines.append((kind["label"], *map(figure, values), *compared(values)))
    loads, stores = [one.sectors_of_a_load for one in there], [one.sectors_of_a_store for one in there]
    for label, found in (("sectors of a load", loads), ("sectors of a store", stores)):
        if any(found):
            lines.append((label, *("" if value is None else f"{value:.2f}" for value in found), *compared(found)))
    columns = ("count", *(profile.on for profile, _ in pairs), *("ratio",) * (len(pairs) == 2))
    yield Table(columns, tuple(lines), frozenset(columns[1:]))
    for profile, counts in pairs:
        if counts.traffic:
            yield traffic_table(profile, counts)
    yield labelled({profile.on: Group(*words(profile, counts, gpus)) for profile, counts in pairs})
    for profile, counts in pairs:
        roof, point = roof_for(counts, gpus[profile.on]), point_of(profile, counts)
        if roof is not None and point is not None:
            yield RooflinePicture(roof, point)
    yield Text()


def compared(values: Sequence[float | None]) -> tuple[str, ...]:
    """The second value relative to the first, if there are two."""
    if len(values) != 2:
        return ()
    found = ratio(values[1], values[0])
    return ("" if found is None else f"{found:.3f}",)


def figure(value: int | None) -> str:
    """`2,048`; empty if not counted."""
    return "" if value is None else f"{value:,}"


def traffic_table(profile: Profile, counts: Counts) -> Table:
    """Bytes by tensor, in whole sectors, next to those from FlashAttention-2's formula."""
    formula = {traffic.tensor: traffic for traffic in profile.formula} if point_of(profile, counts) else {}
    columns = (f"{profile.on}: tensor", "bytes read", "written", "by formula", "times")
    shown, lines = len(columns) if formula else len(columns) - 2, []
    for traffic in counts.traffic:
        of = formula.get(traffic.tensor)
        expected = of.read + of.written if of else None
        found = ratio(traffic.read + traffic.written, expected)
        sizes = map(figure, (traffic.read, traffic.written, expected))
        lines.append((traffic.tensor, *sizes, "" if found is None or not expected else times(found))[:shown])
    return Table(columns[:shown], tuple(lines), frozenset(columns[1:]))


def words(profile: Profile, counts: Counts, gpus: Gpus) -> Iterator[Text]:
    """Occupancy and the roofline's result, in sentences."""
    device = gpus[profile.on]
    if device is not None:  # `3 blocks (assumed) on an SM, 12 of 64 warps (19 %), limited by registers`
        launch, fits = counts.launch, occupancy(counts.launch, device)
        blocks = "1 block" if fits.blocks == 1 else f"{fits.blocks} blocks"
        warps = f"{fits.blocks * fits.warps} of {fits.most_warps} warps ({100 * fits.share:.0f} %)"
        said = f"on an SM, {warps}, limited by {', '.join(fits.limited_by)}"
        if launch.regs is None:  # a ceiling
            yield Text(f"at most {blocks} {said}: the kernel's register count is not known")
        else:
            yield Text(f"{launch.origin.marked(blocks)} {said}")
    executed = counts.values.get("tensor_flops")
    if profile.flops and executed and point_of(profile, counts):
        yield Text(
            f"tensor cores: {executed:.3g} flops; the op needs {profile.flops:.3g} ({times(executed / profile.flops)}x)"
        )
    roof, point = roof_for(counts, device), point_of(profile, counts)
    if roof is not None and point is not None:
        of = "in whole sectors" if counts.dram_bytes is None else "of DRAM traffic"
        least = 1e6 * point.least_seconds(roof)
        yield Text(
            f"{times(point.intensity)} flops per byte ({point.bytes:,} bytes {of}); "
            f"the ridge is at {times(roof.ridge)}: {roof.bound(point.intensity)} bound, at least {times(least)} us"
        )
    elif point is not None:
        yield Text("no roofline: the peak rates of this GPU are not known")


def unknowns(profiles: Sequence[Profile]) -> Iterator[Text]:
    """The meaning of marks, and the counts that depend on an unknown occupancy through the grid."""
    launches = [one.launch for profile in profiles for one in profile.counts]
    for line in legend(launch.origin for launch in launches if launch.regs is not None):
        yield Text(line, "dim")
    for profile in profiles:
        if profile.division is not None and not profile.division.known:
            said = "the grid, and with it the counts, bytes and roofline, depends on an unknown occupancy"
            yield Text(f"{profile.on}: {said} ({profile.division.mark})", "dim")
