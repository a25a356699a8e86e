"""Drawings as SVG text, for light and dark backgrounds."""

import base64
import struct
import zlib
from collections.abc import Iterable, Iterator
from html import escape
from itertools import groupby

import numpy as np

from fattn_probe.base.arrays import Bytes
from fattn_probe.base.view.marks import Box, Cells, Drawing, Mark, Stroke, Words

STYLE = (
    "{color-scheme:light dark;max-width:100%;height:auto;font:11px ui-sans-serif,system-ui,sans-serif;"
    "--ink:#1b1f24;--soft:#59636e;--paper:#fff;--bad:#d1242f}"
)
DARK = "{--ink:#e6edf3;--soft:#9198a1;--paper:#0d1117;--bad:#ff6b6b}"
RULES = {
    "text": "fill:var(--soft)",
    ".n": "font-weight:600;pointer-events:none",
    "image": "image-rendering:pixelated",
    ".hatch": "stroke:var(--paper);stroke-width:2",
}
CHARACTER, BASELINE, LOWEST_LABEL = 7, 11, 11


def svg(drawing: Drawing, *, ids: str = "", fixed: bool = True, stretched: bool = False) -> str:
    """The drawing as an SVG element with its own styles, if its looks have any.

    The prefix `ids` makes ids unique on a page. The page sets the size unless `fixed`, and the shape if `stretched`.
    """
    x, y, width, height = (_n(value) for value in (drawing.x, drawing.y, drawing.width, drawing.height))
    size = f' width="{width}" height="{height}"' if fixed else ""
    size += f' viewBox="{x} {y} {width} {height}"' + (' preserveAspectRatio="none"' if stretched else "")
    drawn = ((*mark.scale.looks, mark.scale.odd) if isinstance(mark, Cells) else (mark.look,) for mark in drawing.marks)
    looks = {look.name: look for each in drawn for look in each}
    own = any(look.css for look in looks.values())
    label = f' aria-label="{escape(drawing.about)}"' if drawing.about and not own else ""
    lines = [f'<svg class="{drawing.name}" xmlns="http://www.w3.org/2000/svg"{size} role="img"{label}>']
    if own:
        name = drawing.name
        rules = RULES | {"." + ".".join(look.name.split()): look.css for look in looks.values() if look.css}
        rest = "".join(
            f".{name} {at}{{{rule}}}" if "{" not in rule else rule.replace("@", f".{name} {at}")
            for at, rule in rules.items()
        )
        lines.append(f"<title>{escape(drawing.about)}</title>" if drawing.about else "")
        lines.append(f"<style>.{name}{STYLE}@media(prefers-color-scheme:dark){{.{name}{DARK}}}{rest}</style>")
    if any(look.hatched for look in looks.values()):
        lines.append(
            f'<defs><pattern id="{ids}-hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><path d="M0 0v6" class="hatch"/></pattern></defs>'
        )
    for shapes, run in groupby(drawing.marks, key=lambda mark: isinstance(mark, Box | Stroke)):
        marks = list(run)
        lines += _shapes(marks, ids) if shapes else map(_other, marks)
    return "".join((*lines, "</svg>"))


def pinned(drawing: Drawing, left: float, *, ids: str = "") -> tuple[str, str]:
    """A drawing in two parts: marks that begin left of `left` and stay in place, and the rest, which scrolls."""
    parts: tuple[list[Mark], list[Mark]] = ([], [])
    for mark in drawing.marks:
        parts[mark.x >= left].append(mark)
    labels, rest = map(tuple, parts)
    y, height = drawing.y, drawing.height
    return (
        svg(Drawing(drawing.name, left, height, labels, "labels", y=y), ids=ids),
        svg(Drawing(drawing.name, drawing.width - left, height, rest, drawing.about, left, y), ids=ids),
    )


def _shapes(marks: Iterable[Mark], ids: str) -> Iterator[str]:
    """Shapes with a tooltip as separate elements, other shapes as one path for each look; then the boxes' labels."""
    merged: dict[str, list[str]] = {}
    labels = []
    for mark in marks:
        assert isinstance(mark, Box | Stroke)
        head, path = _path(mark)
        if mark.title:
            title = f"<title>{escape(mark.title)}</title>"
            shape = f'<path {head} d="{path}"'
            if mark.look.hatched:
                yield f'<g>{title}{shape}/><path fill="url(#{ids}-hatch)" d="{path}"/></g>'
            else:
                yield f"{shape}>{title}</path>"
        else:
            merged.setdefault(head, []).append(path)
        if isinstance(mark, Box) and mark.label:
            labels.append(mark)
    yield from (f'<path {head} d="{"".join(paths)}"/>' for head, paths in merged.items())
    for box in labels:
        room = box.width - CHARACTER * len(box.label)
        if room >= 3 and box.height >= LOWEST_LABEL:
            x, y = _n(box.x + min(6, room / 2)), _n(box.y + box.height / 2 + 4)
            yield f'<text class="n {box.look.name}" x="{x}" y="{y}">{escape(box.label)}</text>'


def _path(mark: Box | Stroke) -> tuple[str, str]:
    """The attributes and path of a shape; a repeated box is a dashed line."""
    head = f'class="{mark.look.name}"'
    if isinstance(mark, Box):
        if not mark.every:
            return head, f"M{_n(mark.x)} {_n(mark.y)}h{_n(mark.width)}v{_n(mark.height)}h-{_n(mark.width)}z"
        dashes = f'stroke-width="{_n(mark.height)}" stroke-dasharray="{_n(mark.width)} {_n(mark.every - mark.width)}"'
        line = f"M{_n(mark.x)} {_n(mark.y + mark.height / 2)}H{_n(mark.stop)}"
        return f'{head} style="fill:none;stroke:{mark.look.colour}" {dashes}', line
    (x, y), *rest = mark.points
    path = f"M{_n(x)} {_n(y)}" + ("" if rest else "h.1")
    for to_x, to_y in rest:
        path += f"H{_n(to_x)}" if to_y == y else f"V{_n(to_y)}" if to_x == x else f"L{_n(to_x)} {_n(to_y)}"
        x, y = to_x, to_y
    return head, path + "z" * mark.closed


def _other(mark: Mark) -> str:
    """The SVG for a line of text or for a matrix."""
    if isinstance(mark, Words):
        anchor = ' text-anchor="end"' if mark.end else ""
        return f'<text x="{_n(mark.x)}" y="{_n(mark.y + BASELINE)}"{anchor}>{escape(mark.text)}</text>'
    assert isinstance(mark, Cells)
    if mark.scale.odd.name and all(look.name for look in mark.scale.looks[1:]):
        return "".join(_cells(mark))
    data = base64.b64encode(_png(mark.scale.pixels(mark.values))).decode()
    place = f'x="{_n(mark.x)}" y="{_n(mark.y)}" width="{_n(mark.width)}" height="{_n(mark.height)}"'
    return f'<image {place} preserveAspectRatio="none" href="data:image/png;base64,{data}"/>'


def _cells(mark: Cells) -> Iterator[str]:
    """One path for each look with a name, made of runs along the rows."""
    rows, columns = mark.values.shape
    width, height = mark.width / columns, mark.height / rows
    places = mark.scale.places(mark.values)
    for place, look in enumerate((*mark.scale.looks, mark.scale.odd)):
        path = ""
        for row, line in enumerate(places):
            edges = np.flatnonzero(np.diff(np.pad(line == place, 1).astype(np.int8)))
            for start, stop in edges.reshape(-1, 2).tolist():
                across = _n((stop - start) * width)
                path += f"M{_n(mark.x + start * width)} {_n(mark.y + row * height)}h{across}v{_n(height)}h-{across}z"
        if path and look.name:
            yield f'<path class="{look.name}" d="{path}"/>'


def _png(image: Bytes) -> bytes:
    """The bytes of a PNG file, from an RGB image (rows, columns, 3)."""
    height, width, _ = image.shape
    lines = b"".join(b"\0" + row.tobytes() for row in image)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    parts = (
        struct.pack(">I", len(data)) + look + data + struct.pack(">I", zlib.crc32(look + data)) for look, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _n(number: float) -> str:
    """A coordinate without unnecessary digits."""
    return f"{number:.2f}".rstrip("0").rstrip(".")
