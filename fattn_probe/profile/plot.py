"""Rooflines as a picture, PNG or SVG."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fattn_probe.errors import InputError
from fattn_probe.profile.command import Profiled
from fattn_probe.profile.document import Gpus
from fattn_probe.profile.points import point_of, roof_for
from fattn_probe.profile.roofline import Point, Roof


def write_roofline(done: Sequence[Profiled], gpus: Gpus, path: Path) -> None:
    """Draw all launches whose place is known, with their roofs; InputError if there is none."""
    found = [
        (roof, point)
        for one in done
        for profile in one.profiles
        for counts in profile.counts
        if (roof := roof_for(counts, gpus[profile.on])) and (point := point_of(profile, counts))
    ]
    if not found:
        raise InputError(f"--plot {path}: no launch has known operations and bytes, and a GPU with known peaks")
    figure = Figure(figsize=(7.0, 4.2), dpi=100, layout="constrained", facecolor="white")
    draw(figure.subplots(), found)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def draw(axis: Axes, found: Sequence[tuple[Roof, Point]]) -> None:
    """The roofs, and on them the kernels: a circle where one may get, a cross where it did."""
    places = [value for roof, point in found for value in (roof.ridge, point.intensity)]
    across = np.geomspace(min(places) / 10, max(places) * 10, 200)
    for roof in dict.fromkeys(roof for roof, _ in found):
        axis.plot(across, [roof.attainable(value) for value in across], color="black", linewidth=1)
    for roof, point in found:
        (mark,) = axis.plot(point.intensity, roof.attainable(point.intensity), "o", label=point.label)
        if point.achieved:
            axis.plot(point.intensity, point.achieved, "x", color=mark.get_color())
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("operations for each byte")
    axis.set_ylabel("operations in a second")
    axis.legend(fontsize=8)
