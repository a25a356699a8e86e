"""Error maps as pictures, PNG and SVG."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from fattn_probe.compare.judge.judgement import Judgement
from fattn_probe.compare.present.error_map import ErrorMap, error_maps, shrunk

PIXELS = 512
LEAST, MOST = 0.1, 1000.0
NOT_FINITE = "#d55e00"


def plot_row(row: Judgement, folder: Path) -> Iterator[Path]:
    """Write the error maps of a row's output, if it has one, as CASE@TARGET.png and .svg; yields the files."""
    if row.dst is None or row.verdict.deviation is None:
        return
    figure = Figure(figsize=(9.0, 3.6), dpi=100, layout="constrained", facecolor="white")
    maps = error_maps(row.dst, row.verdict.deviation)
    holes = "" if all(np.isfinite(found.values).all() for found in maps) else " (orange: not finite, or unwritten)"
    figure.suptitle(f"{row.case} on {row.on}: {row.status.value}{holes}", fontsize=10)
    axes = figure.subplots(1, len(maps))
    for axis, found in zip(axes, maps, strict=True):
        image = _draw(axis, found)
    label = "largest error / expected error of the row"
    figure.colorbar(image, ax=list(axes), label=label, extend="both", shrink=0.9)
    folder.mkdir(parents=True, exist_ok=True)
    for ending in ("png", "svg"):
        path = folder / f"{_file_name(row)}.{ending}"
        figure.savefig(path, metadata={"Date": None} if ending == "svg" else None)
        yield path


def _draw(axis: Axes, found: ErrorMap) -> AxesImage:
    rows, columns = found.values.shape
    values = shrunk(found.values, PIXELS, PIXELS)
    colours = colormaps["Blues"].with_extremes(bad=NOT_FINITE)
    shown = np.ma.masked_invalid(values)
    image = axis.imshow(
        np.ma.maximum(shown, LEAST),
        norm=LogNorm(LEAST, MOST),
        cmap=colours,
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, columns - 0.5, rows - 0.5, -0.5),
    )
    axis.set_title(found.title, fontsize=9)
    axis.set_xlabel(found.across)
    axis.set_ylabel(found.down)
    axis.locator_params(integer=True)
    return image


def _file_name(row: Judgement) -> str:
    return re.sub(r"[^\w.=+@-]", "-", f"{row.case}@{row.on}")
