"""Drawings as PNG and SVG files by matplotlib, in the units of their axes."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from fattn_probe.base.view.marks import Cells, Drawing, Stroke

TICKS = 4
"""The number of intervals on the colour scale."""


def plot(
    drawings: Sequence[Drawing], paths: Iterable[Path], size: tuple[float, float], title: str = "", unit: str = ""
) -> None:
    """Draw lines, dots and matrices side by side; `unit` labels the colour scale."""
    figure = Figure(figsize=size, dpi=100, layout="constrained", facecolor="white")
    if title:
        figure.suptitle(title, fontsize=10)
    axes = figure.subplots(1, len(drawings), squeeze=False)[0]
    for axis, drawing in zip(axes, drawings, strict=True):
        _draw(axis, drawing)
    scales = [mark.scale for drawing in drawings for mark in drawing.marks if isinstance(mark, Cells)]
    if scales:
        limits = scales[0].limits
        step = max(1, len(limits) // TICKS)
        colours = ListedColormap([look.colour for look in scales[0].looks])
        scale = ScalarMappable(BoundaryNorm(limits, colours.N, extend="both"), colours)
        figure.colorbar(scale, ax=list(axes), label=unit, shrink=0.9, ticks=limits[::step], format="%g")
    for path in paths:
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw(axis: Axes, drawing: Drawing) -> None:
    for mark in drawing.marks:
        match mark:
            case Stroke() if len(mark.points) == 1:
                axis.plot(*mark.points[0], mark.look.sign, color=mark.look.colour, label=mark.title or None)
            case Stroke():
                axis.plot(*zip(*mark.points, strict=True), color=mark.look.colour, linewidth=1)
            case Cells():
                extent = (mark.x, mark.x + mark.width, mark.y + mark.height, mark.y)
                axis.imshow(mark.scale.pixels(mark.values), aspect="auto", interpolation="nearest", extent=extent)
                axis.set_title(drawing.about, fontsize=9)
                axis.locator_params(integer=True)
    for name, along in zip("xy", drawing.axes or (), strict=False):
        axis.set(**{f"{name}label": along.label, f"{name}scale": "log" if along.log else "linear"})
    if any(isinstance(mark, Stroke) and mark.title for mark in drawing.marks):
        axis.legend(fontsize=8)
