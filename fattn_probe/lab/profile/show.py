"""Profiles as tables and a roofline on the terminal."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.figures import times
from fattn_probe.base.tables import Table, labelled
from fattn_probe.cases.device.origin import legend
from fattn_probe.lab.profile.command import Profiled
from fattn_probe.lab.profile.counts import ROWS, Counts, Profile, Traffic, blocks_of, matched, ratio
from fattn_probe.lab.profile.document import Gpus, point_of, roof_for
from fattn_probe.lab.profile.occupancy import Occupancy, occupancy
from fattn_probe.lab.profile.roofline_picture import RooflinePicture
from fattn_probe.llama.launch.record import LaunchRecord

SHOWN_ALWAYS = frozenset({"tensor", "ldmatrix", "wavefronts", "conflicts", "load_sectors"})


def render(done: Sequence[Profiled], gpus: Gpus) -> RenderableType:
    """Each launch of each case."""
    return Group(*(part for one in done for part in parts(one, gpus)))


def parts(done: Profiled, gpus: Gpus) -> Iterator[RenderableType]:
    """A case: its problems, then its launches."""
    for profile in done.profiles:
        if profile.problem:
            yield Text(f"{done.name} on {profile.on}: {profile.problem}", "red")
    good = [profile for profile in done.profiles if not profile.problem]
    if good and not any(profile.counts for profile in good):
        yield Text(f"{done.name}: no kernel was launched", "dim")
    for row in matched(good):
        yield from launch_parts(done.name, good, row, gpus)
    yield from unknowns(good)


def launch_parts(
    name: str, profiles: Sequence[Profile], row: Sequence[Counts | None], gpus: Gpus
) -> Iterator[RenderableType]:
    """One launch on all targets: counts, bytes by tensor, occupancy, roofline."""
    pairs = [(profile, counts) for profile, counts in zip(profiles, row, strict=True) if counts is not None]
    launch = pairs[0][1].launch
    yield Text(f"{name}: {launch.spelling}", "bold")
    yield Text(f"{launch.geometry}: {blocks_of(launch)} blocks", "dim")
    yield count_table([profile.on for profile, _ in pairs], [counts for _, counts in pairs])
    for profile, counts in pairs:
        if counts.traffic:
            yield traffic_table(profile, counts)
    yield labelled({profile.on: Group(*words(profile, counts, gpus)) for profile, counts in pairs})
    for profile, counts in pairs:
        roof, point = roof_for(counts, gpus[profile.on]), point_of(profile, counts)
        if roof is not None and point is not None:
            yield RooflinePicture(roof, point)
    yield Text()


def count_table(targets: Sequence[str], row: Sequence[Counts]) -> Table:
    """The counts of a launch, a column for each target; for two targets also the ratio of the second to the first."""
    lines: list[tuple[str, ...]] = []
    for kind in ROWS:
        values = [counts.values.get(kind.key) for counts in row]
        if any(values) or (kind.key in SHOWN_ALWAYS and values != [None] * len(values)):
            lines.append((kind.label, *map(figure, values), *compared(values)))
    loads, stores = [one.sectors_of_a_load for one in row], [one.sectors_of_a_store for one in row]
    for label, found in (("sectors of a load", loads), ("sectors of a store", stores)):
        if any(found):
            lines.append((label, *("" if value is None else f"{value:.2f}" for value in found), *compared(found)))
    columns = ("count", *targets, *("ratio",) * (len(targets) == 2))
    return Table(columns, tuple(lines), frozenset(columns[1:]))


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
    """Bytes by tensor, in whole sectors, beside those of FlashAttention-2's formula."""
    formula = {traffic.tensor: traffic for traffic in profile.formula} if point_of(profile, counts) else {}
    lines = tuple(traffic_row(traffic, formula.get(traffic.tensor)) for traffic in counts.traffic)
    columns = (f"{profile.on}: tensor", "bytes read", "written", "by formula", "times")
    shown = len(columns) if formula else len(columns) - 2
    return Table(columns[:shown], tuple(line[:shown] for line in lines), frozenset(columns[1:]))


def traffic_row(traffic: Traffic, formula: Traffic | None) -> tuple[str, ...]:
    """One tensor."""
    expected = formula.read + formula.written if formula else None
    found = ratio(traffic.read + traffic.written, expected)
    sizes = (traffic.read, traffic.written, expected)
    return (traffic.tensor, *map(figure, sizes), "" if found is None or not expected else times(found))


def words(profile: Profile, counts: Counts, gpus: Gpus) -> Iterator[Text]:
    """Occupancy and the roofline's result, in sentences."""
    device = gpus[profile.on]
    if device is not None:
        yield Text(occupancy_words(counts.launch, occupancy(counts.launch, device)))
    executed = counts.values.get("tensor_flops")
    if profile.flops and executed and point_of(profile, counts):
        yield Text(
            f"tensor cores: {executed:.3g} flops for {profile.flops:.3g} of the op ({times(executed / profile.flops)}x)"
        )
    roof, point = roof_for(counts, device), point_of(profile, counts)
    if roof is not None and point is not None:
        of = "bytes in sectors" if counts.dram_bytes is None else "bytes of DRAM"
        least = 1e6 * point.least_seconds(roof)
        yield Text(
            f"{times(point.intensity)} flops for each of {point.bytes:,} {of}; the ridge is at {times(roof.ridge)}:"
            f" {roof.bound(point.intensity)} bound, at least {times(least)} us"
        )
    elif point is not None:
        yield Text("no roofline: the peak rates of this GPU are not known")


def occupancy_words(launch: LaunchRecord, fits: Occupancy) -> str:
    """`3 blocks (assumed) on an SM, 12 of 64 warps (19 %), limited by registers`; a ceiling without registers."""
    limit = ", ".join(fits.limited_by)
    blocks = "1 block" if fits.blocks == 1 else f"{fits.blocks} blocks"
    warps = f"{fits.blocks * fits.warps} of {fits.most_warps} warps ({100 * fits.share:.0f} %)"
    said = f"on an SM, {warps}, limited by {limit}"
    if launch.regs is None:
        return f"at most {blocks} {said}: the kernel's registers are not known"
    return f"{launch.origin.marked(blocks)} {said}"


def unknowns(profiles: Sequence[Profile]) -> Iterator[Text]:
    """The meaning of marks, and the counts that depend on an unknown occupancy through the grid."""
    launches = [one.launch for profile in profiles for one in profile.counts]
    for line in legend(launch.origin for launch in launches if launch.regs is not None):
        yield Text(line, "dim")
    for profile in profiles:
        if profile.division is not None and not profile.division.known:
            said = "the grid, and with it counts, bytes and roofline, rest on an occupancy that is not known"
            yield Text(f"{profile.on}: {said} ({profile.division.mark})", "dim")
