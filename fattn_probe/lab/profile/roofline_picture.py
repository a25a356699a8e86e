"""A roofline with logarithmic axes: in characters, and of several launches as PNG or SVG."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult

from fattn_probe.base.errors import InputError
from fattn_probe.base.view.characters import lines
from fattn_probe.base.view.marks import Axis, Drawing, Look, Mark, Stroke, Words
from fattn_probe.lab.profile.command import Profiled
from fattn_probe.lab.profile.document import Gpus, point_of, roof_for
from fattn_probe.lab.profile.roofline import Point, Roof

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
    axes = Axis("operations for each byte", first, last, True), Axis("operations in a second", bottom, top, True)
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
        first, end = f"{drawn.axes[0].first:.2g}", f"{drawn.axes[0].last:.2g} flops a byte"
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
        for one in done
        for profile in one.profiles
        for counts in profile.counts
        if (roof := roof_for(counts, gpus[profile.on])) and (point := point_of(profile, counts))
    ]
    if not found:
        raise InputError(f"--plot {path}: no launch has known operations and bytes, and a GPU with known peaks")
    plot([roofline(found)], [path], (7.0, 4.2))
